#include "ops/pca_project.h"

#include "cpu/projection.h"

namespace boost_ext::cpu::BOOST_EXT_ISA {
namespace {

constexpr std::int64_t kBlock = 4096;
// A thread walks along its rows for a strip before it turns to the next ones, so that the hardware prefetcher runs
// ahead; the strip of the gradient stays in the second-level cache meanwhile.
constexpr std::int64_t kBlocksPerStrip = 8;
constexpr std::int64_t kStrip = kBlock * kBlocksPerStrip;

// Rows of P in one visit to the gradient: four streams keep more of the memory busy than one.
constexpr int kRows = 4;
constexpr std::int64_t kAhead = 2048;  // bytes to prefetch ahead

// out[r * out_stride] = <row r of `rows`, g> for R rows.
template <int R, class T>
BOOST_EXT_INLINE void dots(FloatRows<T> rows, const float* g, std::int64_t count, double* out,
                           std::int64_t out_stride) {
  F sums[R][kAccumulators] = {};
  sweep<Full>(count, [&](auto io, std::int64_t i, auto at) BOOST_EXT_INLINE_LAMBDA {
    constexpr int u = decltype(at)::value;
    const F x = io.load(g + i);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const T* p = rows.p + r * rows.stride + i;
      if (sizeof(T) == 4 || u % 2 == 0) __builtin_prefetch(p + kAhead / sizeof(T));  // once a cache line
      sums[r][u] = sums[r][u] + io.load(p) * x;
    }
  });
  for (int r = 0; r < R; ++r) out[r * out_stride] = sum((sums[r][0] + sums[r][1]) + (sums[r][2] + sums[r][3]));
}

template <int R>
BOOST_EXT_INLINE void dots(CodeRows rows, const float* g, std::int64_t count, double* out, std::int64_t out_stride) {
  F sums[R] = {};
  each_block(
      rows.column, count,
      [&](std::int64_t b, std::int64_t i, std::int64_t end) BOOST_EXT_INLINE_LAMBDA {
        prefetch_block<R>(rows, i, kAhead);
        F inside[R] = {};
        for (; i < end; i += kLanes) {
          const F x = load(g + i);
#pragma GCC unroll 4
          for (int r = 0; r < R; ++r) inside[r] = inside[r] + load(rows.p + r * rows.stride + i) * x;
        }
        for (int r = 0; r < R; ++r) sums[r] = sums[r] + rows.scale[r * rows.blocks + b] * inside[r];
      },
      [&](std::int64_t b, std::int64_t i, std::int64_t cut, std::int64_t left) BOOST_EXT_INLINE_LAMBDA {
        const F x = load_left(g + i, left);
        for (int r = 0; r < R; ++r) {
          const F scale = scales_across(rows.scale + r * rows.blocks, b, cut, left);
          sums[r] = sums[r] + scale * (load_left(rows.p + r * rows.stride + i, left) * x);
        }
      });
  for (int r = 0; r < R; ++r) out[r * out_stride] = sum(sums[r]);
}

template <int R, class Rows>
BOOST_EXT_INLINE void strip_dots(Rows rows, const float* g, std::int64_t count, double* out, std::int64_t out_stride) {
  for (std::int64_t i = 0; i < count; i += kBlock, ++out) {
    const std::int64_t left = count - i;
    dots<R>(rows.at(0, i), g + i, left < kBlock ? left : kBlock, out, out_stride);
  }
}

}  // namespace

void pca_project(const Context& context, const View& P, const float* scale, Tensors grads, std::int64_t n, float* out) {
  const std::int64_t k = P.rows;
  Blocks strips(grads, kStrip);
  Scratch<std::int64_t> column(grads.count);
  for (std::int64_t t = 0, at = 0; t < grads.count; at += grads[t++].size) column[t] = at;
  const std::int64_t blocks = strips.count() * kBlocksPerStrip;  // the last strip of a tensor may leave some unused
  Scratch<double> partial(k * blocks);
  std::memset(partial.get(), 0, static_cast<std::size_t>(k * blocks) * sizeof(double));

  strips.run(
      context.threads,
      [&](Block strip) {
        alignas(64) float g[kStrip];  // in float32 once, not once a row
        typed(grads[strip.tensor], [&](auto* source) BOOST_EXT_INLINE_LAMBDA {
          sweep(strip.count, [&](auto io, std::int64_t i, auto)
                                 BOOST_EXT_INLINE_LAMBDA { io.store(g + i, io.load(source + strip.begin + i)); });
        });
        with_rows(P, scale, n, [&](auto rows) BOOST_EXT_INLINE_LAMBDA {
          const auto first = rows.at(0, column[strip.tensor] + strip.begin);
          double* const sums = &partial[strip.index * kBlocksPerStrip];
          std::int64_t r = 0;
          for (; r + kRows <= k; r += kRows)
            strip_dots<kRows>(first.at(r, 0), g, strip.count, sums + r * blocks, blocks);
          for (; r < k; ++r) strip_dots<1>(first.at(r, 0), g, strip.count, sums + r * blocks, blocks);
        });
      },
      k);

  for (std::int64_t r = 0; r < k; ++r) {
    double total = 0;
    for (std::int64_t b = 0; b < blocks; ++b) total += partial[r * blocks + b];
    out[r] = static_cast<float>(total);
  }
}

}  // namespace boost_ext::cpu::BOOST_EXT_ISA
