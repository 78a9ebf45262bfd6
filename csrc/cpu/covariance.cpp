#include "ops/covariance.h"

#include "cpu/products.h"

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

constexpr std::int64_t kRows = 4 * kSlab;  // that are packed at a time, so that sums are seldom brought from memory
constexpr std::int64_t kStrip = 512;       // columns of one unit of work
constexpr int kWide = kTileColumns<float>;

// Output positions of one line of an image, from `column` on: `count` rows of a slab from its row `k` on.
struct Run {
  std::int64_t k, count, image, line, column;
};

// The runs of rows r up to r + count.
std::int64_t find_runs(const Patches& p, std::int64_t r, std::int64_t count, Run* runs) {
  std::int64_t found = 0;
  for (std::int64_t k = 0; k < count; ++found) {
    const std::int64_t column = (r + k) % p.ow, line = (r + k) / p.ow;
    runs[found] = {k, smaller(count - k, p.ow - column), line / p.oh, line % p.oh, column};
    k += runs[found].count;
  }
  return found;
}

// `count` elements, `step` apart, as floats in `line`, or where they are.
template <class T> const float* as_floats(const T* from, std::int64_t count, std::int64_t& step, float* line) {
  if (step == 1) {
    sweep(count, [&](auto io, std::int64_t c, auto) BOOST_EXT_INLINE_LAMBDA { io.store(line + c, io.load(from + c)); });
  } else {
    for (std::int64_t c = 0; c < count; ++c) line[c] = as_float(from + c * step);
  }
  step = 1;
  return line;
}
template <> const float* as_floats(const float* from, std::int64_t, std::int64_t&, float*) { return from; }

// Feature f of the patches of these runs times `scale`, into a column of a panel.
template <class T>
void pack_feature(const T* x, const Patches& p, const Run* runs, std::int64_t count, std::int64_t f, float scale,
                  float* to) {
  const std::int64_t channel = f / (p.kh * p.kw), i = f / p.kw % p.kh, j = f % p.kw;
  // Positions whose element is within its line: 0 <= position * sw + shift < w.
  const std::int64_t shift = j * p.dw - p.left;
  const std::int64_t before = shift < 0 ? (-shift + p.sw - 1) / p.sw : 0;
  const std::int64_t after = p.w > shift ? (p.w - shift + p.sw - 1) / p.sw : 0;
  for (const Run* run = runs; run < runs + count; ++run) {
    const std::int64_t y = run->line * p.sh - p.top + i * p.dh;
    std::int64_t c = 0, end = 0;
    float line[kSlab];
    if (y >= 0 && y < p.h && after > run->column) {
      const std::int64_t begin = smaller(before > run->column ? before - run->column : 0, run->count);
      end = smaller(run->count, after - run->column);
      for (; c < begin; ++c, to += kWide) *to = 0;
      if (c < end) {
        const T* const from = x + ((run->image * p.c + channel) * p.h + y) * p.w;
        std::int64_t step = p.sw;
        const float* at = as_floats(from + (run->column + c) * p.sw + shift, end - c, step, line);
        for (; c < end; ++c, to += kWide, at += step) *to = scale * *at;
      }
    }
    for (; c < run->count; ++c, to += kWide) *to = 0;
  }
}

// Rows r up to r + count of features first up to first + features, in panels of `stride` elements, which hold zeros
// from there up to column `end`.
template <class T>
void pack_rows(const T* x, const Patches& p, std::int64_t r, std::int64_t count, std::int64_t first,
               std::int64_t features, std::int64_t end, float scale, std::int64_t stride, float* panels) {
  if (p.h * p.w * p.kh * p.kw * p.oh * p.ow == 1) {
    for (std::int64_t j = 0; j < end; j += kWide, panels += stride) {
      pack_panel(x + r * p.c + first + smaller(j, features), p.c, count, features - j, scale, panels);
    }
    return;
  }
  for (std::int64_t k = 0; k < count; k += kSlab) {
    Run runs[kSlab];
    const std::int64_t some = smaller(kSlab, count - k), found = find_runs(p, r + k, some, runs);
    for (std::int64_t f = 0; f < end; ++f) {
      float* const to = panels + f / kWide * stride + k * kWide + f % kWide;
      if (f < features) {
        pack_feature(x, p, runs, found, first + f, scale, to);
      } else {
        for (std::int64_t c = 0; c < some; ++c) to[c * kWide] = 0;
      }
    }
  }
}

// to = tile in float64, or to += it.
void put_widened(const Tile<float, kPanelRows>& tile, std::int64_t stride, bool first, double* to) {
  constexpr int kHalf = kLanesOf<double>;
  BOOST_EXT_EACH_OF(kPanelRows, m) BOOST_EXT_EACH_OF(kTileVectors, v) {
    double* const at = to + m * stride + v * kLanesOf<float>;
    const Vd low = widen_low(tile[m][v]), high = widen_high(tile[m][v]);
    put(at, first ? low : vector_at(at) + low);
    put(at + kHalf, first ? high : vector_at(at + kHalf) + high);
  }
}

// One unit of work: rows from begin to end of the features of a block, in the columns from `column` to `last`.
struct Share {
  std::int64_t begin, end, feature, column, last;
};

// The upper triangle of the sum over the part's rows, in float64, width by width.
template <class T>
void sum_rows(const T* x, const Patches& p, Share part, std::int64_t features, std::int64_t width, float scale,
              float* panels, double* sums) {
  for (std::int64_t r = part.begin; r < part.end; r += kRows) {
    const std::int64_t rows = smaller(kRows, part.end - r), stride = rows * kWide;
    pack_rows(x, p, r, rows, part.feature, smaller(features, part.last), part.last, scale, stride, panels);
    for (std::int64_t j = part.column; j < part.last; j += kWide) {
      const float* const right = panels + j / kWide * stride;
      for (std::int64_t i = 0; i < j + kWide; i += kPanelRows) {
        const float* const left = panels + i / kWide * stride + i % kWide;
        for (std::int64_t k = 0; k < rows; k += kSlab) {
          Tile<float, kPanelRows> tile;
          multiply_tile<1, kWide>(left + k * kWide, right + k * kWide, smaller(kSlab, rows - k), tile);
          put_widened(tile, width, r + k == part.begin, sums + i * width + j);
        }
      }
    }
  }
}

// The sums of the parts in their order, from the upper triangles into both; a square at a time, since columns lie far
// apart.
void add_parts(const double* sums, std::int64_t parts, std::int64_t width, double factor, std::int64_t block,
               double* to) {
  for (std::int64_t i = 0; i < block; i += kSquare) {
    for (std::int64_t j = i; j < block; j += kSquare) {
      for (std::int64_t m = i; m < smaller(i + kSquare, block); ++m) {
        for (std::int64_t n = j > m ? j : m; n < smaller(j + kSquare, block); ++n) {
          double sum = 0;
          for (std::int64_t k = 0; k < parts; ++k) sum += sums[(k * width + m) * width + n];
          to[m * block + n] = to[n * block + m] = factor * sum;
        }
      }
    }
  }
}

}  // namespace

void covariance(const Context& context, const View& x, const Patches& p, double factor, std::int64_t block,
                const View& out) {
  const std::int64_t blocks = out.rows, width = padded<float>(block), rows = p.rows();
  auto* to = static_cast<double*>(out.data);
  if (rows == 0) {
    for (std::int64_t i = 0; i < out.size; ++i) to[i] = 0;
    return;
  }
  // Large blocks are cut into strips of columns, long sums of few others into parts; by sizes alone, so that the bits
  // do not depend on how many threads there are.
  const std::int64_t strips = quotient_up(width, kStrip);
  const std::int64_t wanted = blocks * strips >= 8 || strips > 1 ? 1 : 1 + rows / 1024;
  const std::int64_t parts = wanted < 8 ? wanted : 8, share = quotient_up(rows, parts);
  const float scale = normalizer(x);
  factor /= static_cast<double>(scale) * static_cast<double>(scale);
  const bool in_place = parts == 1 && width == block;
  Scratch<double> memory(in_place ? 0 : blocks * parts * width * width);
  double* const sums = in_place ? to : memory.get();
  on_threads(context.threads, rows * p.size() * (4 + block / 8), blocks * parts * strips,
             [&](std::int64_t begin, std::int64_t end) {
               Scratch<float> panels(kRows * width);
               for (std::int64_t u = begin; u < end; ++u) {
                 const std::int64_t which = u / strips, column = u % strips * kStrip;
                 const std::int64_t feature = which / parts * block, from = which % parts * share;
                 const Share part{from, smaller(from + share, rows), feature, column, smaller(column + kStrip, width)};
                 typed(x, [&](const auto* data) {
                   sum_rows(data, p, part, smaller(p.size() - feature, block), width, scale, panels.get(),
                            sums + which * width * width);
                 });
               }
             });
  on_threads(context.threads, blocks * block * block, blocks, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t b = begin; b < end; ++b) {
      add_parts(sums + b * parts * width * width, parts, width, factor, block, to + b * block * block);
    }
  });
}

}  // namespace boost_ext::cpu::BOOST_EXT_ISA
