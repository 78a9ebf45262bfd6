#include "ops/pca_project.h"

#include "cpu/parallel.h"

namespace boost_ext::cpu::BOOST_EXT_ISA {
namespace {

constexpr std::int64_t kBlock = 4096;
// A thread walks along one row for a strip before it turns to the next, so that the hardware prefetcher runs ahead;
// the strip of the gradient stays in the second-level cache meanwhile.
constexpr std::int64_t kBlocksPerStrip = 8;
constexpr std::int64_t kStrip = kBlock * kBlocksPerStrip;

template <class T> BOOST_EXT_INLINE double dot(const T* row, const float* g, std::int64_t n) {
  F sums[kAccumulators] = {};
  sweep(n, [&](auto io, std::int64_t i, auto at) BOOST_EXT_INLINE_LAMBDA {
    __builtin_prefetch(row + i + 2048);
    F& acc = sums[decltype(at)::value];
    acc = acc + io.load(row + i) * io.load(g + i);
  });
  return sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

}  // namespace

void pca_project(const Context& context, const View& P, Tensors grads, std::int64_t n, float* out) {
  const std::int64_t k = P.rows;
  Blocks strips(grads, kStrip);
  Scratch<std::int64_t> column(grads.count);
  for (std::int64_t t = 0, at = 0; t < grads.count; at += grads[t++].size) column[t] = at;
  const std::int64_t blocks = strips.count() * kBlocksPerStrip;  // the last strip of a tensor may leave some unused
  Scratch<double> partial(k * blocks);
  std::memset(partial.get(), 0, static_cast<std::size_t>(k * blocks) * sizeof(double));

  strips.run(context.threads, [&](Block strip) {
    float g[kStrip];  // in float32 once, not once a row
    typed(grads[strip.tensor], [&](auto* source) BOOST_EXT_INLINE_LAMBDA {
      sweep(strip.count, [&](auto io, std::int64_t i, auto) BOOST_EXT_INLINE_LAMBDA {
        io.store(g + i, io.load(source + strip.begin + i));
      });
    });
    typed(P, [&](auto* p) BOOST_EXT_INLINE_LAMBDA {
      for (std::int64_t r = 0; r < k; ++r) {
        const auto* row = p + r * n + column[strip.tensor] + strip.begin;
        for (std::int64_t b = 0; b * kBlock < strip.count; ++b) {
          const std::int64_t left = strip.count - b * kBlock;
          partial[r * blocks + strip.index * kBlocksPerStrip + b] =
              dot(row + b * kBlock, g + b * kBlock, left < kBlock ? left : kBlock);
        }
      }
    });
  }, k);

  for (std::int64_t r = 0; r < k; ++r) {
    double total = 0;
    for (std::int64_t b = 0; b < blocks; ++b) total += partial[r * blocks + b];
    out[r] = static_cast<float>(total);
  }
}

}  // namespace boost_ext::cpu::BOOST_EXT_ISA
