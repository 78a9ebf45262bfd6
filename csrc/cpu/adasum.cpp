#include "ops/adasum.h"

#include <cstring>

#include "cpu/chunks.h"
#include "cpu/parallel.h"
#include "cpu/sums_of_products.h"
#include "ops/adasum_part.h"

namespace boost_ext::cpu::BOOST_EXT_ISA {
namespace {

constexpr std::int64_t kBlock = 4096;

BOOST_EXT_INLINE float coefficient(double ab, double norm2) {
  return norm2 == 0 ? 1.0F : static_cast<float>(1 - ab / (2 * norm2));
}

template <class T> BOOST_EXT_INLINE void combine(const T* a, const T* b, T* out, std::int64_t n, float ca, float cb) {
  sweep(n, [&](auto io, std::int64_t i, auto)
               BOOST_EXT_INLINE_LAMBDA { io.store(out + i, ca * io.load(a + i) + cb * io.load(b + i)); });
}
BOOST_EXT_INLINE void combine(const BFloat* a, const BFloat* b, BFloat* out, std::int64_t n, float ca, float cb) {
  sweep_shorts(n, [&](auto io, std::int64_t i, auto) BOOST_EXT_INLINE_LAMBDA {
    const S x = io.load_shorts(a + i), y = io.load_shorts(b + i);
    io.store_shorts(out + i, to_bfloats(ca * evens(x) + cb * evens(y), ca * odds(x) + cb * odds(y)));
  });
}

}  // namespace

void adasum_dots(const Context& context, Tensors a, Tensors b, double* dots) {
  Blocks blocks(a, kBlock);
  Scratch<Dots> partial(blocks.count());
  blocks.run(
      context.threads,
      [&](Block at) {
        typed(a[at.tensor], [&](auto* pa) {
          const auto* pb = static_cast<decltype(pa)>(b[at.tensor].data);
          partial[at.index] = cpu::BOOST_EXT_ISA::dots(pa + at.begin, pb + at.begin, at.count);
        });
      },
      3);
  for (std::int64_t t = 0; t < a.count; ++t) {
    double* total = dots + 3 * t;
    total[0] = total[1] = total[2] = 0;
    for (std::int64_t i = blocks.first(t); i < blocks.first(t + 1); ++i) {
      total[0] += partial[i].ab;
      total[1] += partial[i].aa;
      total[2] += partial[i].bb;
    }
  }
}

void adasum_combine(const Context& context, Tensors a, Tensors b, const double* dots, Tensors out) {
  Blocks(a).run(context.threads, [&](Block at) {
    const double* d = dots + 3 * at.tensor;
    const float ca = coefficient(d[0], d[1]);
    const float cb = coefficient(d[0], d[2]);
    typed(a[at.tensor], [&](auto* pa) BOOST_EXT_INLINE_LAMBDA {
      const auto* pb = static_cast<decltype(pa)>(b[at.tensor].data) + at.begin;
      auto* po = static_cast<decltype(pa)>(out[at.tensor].data) + at.begin;
      pa += at.begin;
      combine(pa, pb, po, at.count, ca, cb);
    });
  });
}

void adasum_part_keep(const Context& context, Tensors weights, Tensors halves, Tensors out) {
  Blocks(weights, kChunk).run(context.threads, [&](Block at) {
    const View &weight = weights[at.tensor], &half = halves[at.tensor];
    if (half.size > 0) {
      float* master = static_cast<float*>(weight.data) + at.begin;
      typed(half, [&](auto* p) { follow(master, p + at.begin, at.count); });
    }
    typed(weight, [&](auto* p) {
      auto* to = static_cast<decltype(p)>(out[at.tensor].data) + at.begin;
      std::memcpy(to, p + at.begin, static_cast<std::size_t>(at.count) * sizeof *p);
    });
  });
}

void adasum_part_apply(const Context& context, Tensors sum, Tensors old, Tensors weights, Tensors halves) {
  Blocks(weights, kChunk).run(context.threads, [&](Block at) {
    const View& half = halves[at.tensor];
    typed(weights[at.tensor], [&](auto* weight) BOOST_EXT_INLINE_LAMBDA {
      const auto* from = static_cast<decltype(weight)>(old[at.tensor].data) + at.begin;
      const auto* less = static_cast<decltype(weight)>(sum[at.tensor].data) + at.begin;
      weight += at.begin;
      sixteens(at.count, [&](auto io, std::int64_t i)
                             BOOST_EXT_INLINE_LAMBDA { io.store(weight + i, io.load(from + i) - io.load(less + i)); });
    });
    if (half.size == 0) return;
    const float* master = static_cast<const float*>(weights[at.tensor].data) + at.begin;
    typed(half, [&](auto* p) { convert(master, p + at.begin, at.count); });
  });
}

}  // namespace boost_ext::cpu::BOOST_EXT_ISA
