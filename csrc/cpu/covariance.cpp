#include "ops/covariance.h"

#include "cpu/tiles.h"

namespace boost_ext::cpu::BOOST_EXT_ISA {
namespace {

// A power of two that brings the largest element near 1, if it is far from there: squares of gradients with a large
// loss scale are beyond float32.
float normalizer(const View& x) {
  constexpr std::int32_t kFar = 40, kBias = 127;
  I largest[kAccumulators] = {};
  typed(x, [&](const auto* data) {
    sweep(x.size, [&](auto io, std::int64_t i, auto u) BOOST_EXT_INLINE_LAMBDA {
      I& acc = largest[decltype(u)::value];
      acc = max(acc, magnitude_bits(io.load(data + i)));
    });
  });
  const std::int32_t bits = max_lane(max(max(largest[0], largest[1]), max(largest[2], largest[3])));
  const std::int32_t exponent = bits / (1 << 23) - kBias;
  if (bits >= kInfBits || bits < (1 << 23) || (exponent <= kFar && exponent >= -kFar)) return 1;
  const std::int32_t inverse = (kBias - (exponent < kBias ? exponent : kBias - 1)) * (1 << 23);
  float result = 1;
  std::memcpy(&result, &inverse, sizeof result);
  return result;
}

template <class T> float as_float(const T* p) {
  T some[kLanes] = {};
  some[0] = *p;
  float lanes[kLanes];
  store(lanes, load(some));
  return lanes[0];
}
template <> float as_float(const float* p) { return *p; }

// Features `first` up to first + count of the patch at row r times `scale`, zeros up to `width`.
template <class T>
void copy_patch(const T* x, const Patches& p, std::int64_t r, std::int64_t first, std::int64_t count,
                std::int64_t width, float scale, float* to) {
  const std::int64_t column = r % p.ow, line = r / p.ow % p.oh, image = r / (p.ow * p.oh);
  const T* const from = x + image * p.c * p.h * p.w;
  const bool plain = p.kh * p.kw == 1;
  std::int64_t channel = first / (p.kh * p.kw), i = first % (p.kh * p.kw) / p.kw, j = first % p.kw;
  for (std::int64_t f = 0; f < count; ++f) {
    const std::int64_t y = line * p.sh - p.top + i * p.dh, z = column * p.sw - p.left + j * p.dw;
    const bool inside = y >= 0 && y < p.h && z >= 0 && z < p.w;
    to[f] = inside ? scale * as_float(from + (channel * p.h + y) * p.w + z) : 0;
    if (plain) {
      ++channel;
    } else if (++j == p.kw) {
      j = 0;
      if (++i == p.kh) i = 0, ++channel;
    }
  }
  for (std::int64_t f = count; f < width; ++f) to[f] = 0;
}

template <class T> void copy_row(const T* x, std::int64_t count, std::int64_t width, float scale, float* to) {
  for (std::int64_t f = count; f < width; ++f) to[f] = 0;
  sweep(count,
        [&](auto io, std::int64_t i, auto) BOOST_EXT_INLINE_LAMBDA { io.store(to + i, scale * io.load(x + i)); });
}

// The upper triangle of the sum over some rows, in float64, width by width.
template <class T>
void sum_rows(const T* x, const Patches& p, std::int64_t begin, std::int64_t end, std::int64_t first,
              std::int64_t count, std::int64_t width, float scale, float* rows, double* sums) {
  for (std::int64_t i = 0; i < width * width; ++i) sums[i] = 0;
  for (std::int64_t r = begin; r < end; r += kSlab) {
    const std::int64_t some = end - r < kSlab ? end - r : kSlab;
    for (std::int64_t k = 0; k < some; ++k) {
      if (p.h * p.w * p.kh * p.kw * p.oh * p.ow == 1)
        copy_row(x + (r + k) * p.c + first, count, width, scale, rows + k * width);
      else
        copy_patch(x, p, r + k, first, count, width, scale, rows + k * width);
    }
    for (std::int64_t i = 0; i < width; i += kTileRows) {
      for (std::int64_t j = i / kLanes * kLanes; j < width; j += kLanes) {
        F tile[kTileRows];
        multiply_tile(rows + i, 1, width, rows + j, width, some, tile);
        for (std::int64_t m = 0; m < kTileRows; ++m) {
          double lane[kLanes];
          const D wide = widen(tile[m]);
          std::memcpy(lane, &wide, sizeof lane);
          double* to = sums + (i + m) * width + j;
          for (int l = 0; l < kLanes; ++l) to[l] += lane[l];
        }
      }
    }
  }
}

}  // namespace

void covariance(const Context& context, const View& x, const Patches& p, double factor, std::int64_t block,
                const View& out) {
  const std::int64_t blocks = out.rows, width = padded(block), rows = p.rows();
  // Long sums of few blocks are cut into parts, so that there is work for more threads; by sizes alone, so that the
  // bits do not depend on how many threads there are.
  const std::int64_t wanted = blocks >= 8 ? 1 : 1 + rows / 1024;
  const std::int64_t parts = wanted < 8 ? wanted : 8, share = (rows + parts - 1) / parts;
  const float scale = normalizer(x);
  factor /= static_cast<double>(scale) * static_cast<double>(scale);
  Scratch<double> sums(blocks * parts * width * width);
  on_threads(context.threads, rows * p.size() * (1 + block / 8), blocks * parts,
             [&](std::int64_t begin, std::int64_t end) {
               Scratch<float> buffer(kSlab * width);
               for (std::int64_t u = begin; u < end; ++u) {
                 const std::int64_t first = u / parts * block, left = p.size() - first;
                 const std::int64_t from = u % parts * share, to = from + share < rows ? from + share : rows;
                 typed(x, [&](auto* data) {
                   sum_rows(data, p, from, to, first, left < block ? left : block, width, scale, buffer.get(),
                            sums.get() + u * width * width);
                 });
               }
             });
  auto* to = static_cast<double*>(out.data);
  for (std::int64_t b = 0; b < blocks; ++b, to += block * block) {
    for (std::int64_t i = 0; i < block; ++i) {
      for (std::int64_t j = i; j < block; ++j) {
        double sum = 0;
        for (std::int64_t k = 0; k < parts; ++k) sum += sums[((b * parts + k) * width + i) * width + j];
        to[i * block + j] = to[j * block + i] = factor * sum;
      }
    }
  }
}

}  // namespace boost_ext::cpu::BOOST_EXT_ISA
