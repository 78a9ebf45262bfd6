#include "ops/adasum.h"

#include <cstring>

#include "cpu/chunks.h"
#include "cpu/parallel.h"
#include "ops/adasum_part.h"

namespace boost_ext::cpu::BOOST_EXT_ISA {
namespace {

constexpr std::int64_t kBlock = 4096;

BOOST_EXT_INLINE float coefficient(double ab, double norm2) {
  return norm2 == 0 ? 1.0F : static_cast<float>(1 - ab / (2 * norm2));
}

}  // namespace

void adasum_dots(const Context& context, Tensors a, Tensors b, double* dots) {
  Blocks blocks(a, kBlock);
  Scratch<double> partial(3 * blocks.count());
  blocks.run(
      context.threads,
      [&](Block at) {
        D ab[2] = {}, aa[2] = {}, bb[2] = {};
        typed(a[at.tensor], [&](auto* pa) BOOST_EXT_INLINE_LAMBDA {
          const auto* pb = static_cast<decltype(pa)>(b[at.tensor].data) + at.begin;
          pa += at.begin;
          sweep(at.count, [&](auto io, std::int64_t i, auto u) BOOST_EXT_INLINE_LAMBDA {
            constexpr int half = decltype(u)::value % 2;
            const D x = widen(io.load(pa + i));
            const D y = widen(io.load(pb + i));
            ab[half] = add_product(ab[half], x, y);
            aa[half] = add_product(aa[half], x, x);
            bb[half] = add_product(bb[half], y, y);
          });
        });
        double* p = &partial[3 * at.index];
        p[0] = sum(ab[0] + ab[1]);
        p[1] = sum(aa[0] + aa[1]);
        p[2] = sum(bb[0] + bb[1]);
      },
      3);
  for (std::int64_t t = 0; t < a.count; ++t) {
    double total[3] = {0, 0, 0};
    for (std::int64_t i = blocks.first(t); i < blocks.first(t + 1); ++i) {
      for (int j = 0; j < 3; ++j) total[j] += partial[3 * i + j];
    }
    std::memcpy(dots + 3 * t, total, sizeof total);
  }
}

void adasum_combine(const Context& context, Tensors a, Tensors b, const double* dots, Tensors out) {
  Blocks(a, kBlock).run(context.threads, [&](Block at) {
    const double* d = dots + 3 * at.tensor;
    const float ca = coefficient(d[0], d[1]);
    const float cb = coefficient(d[0], d[2]);
    typed(a[at.tensor], [&](auto* pa) BOOST_EXT_INLINE_LAMBDA {
      const auto* pb = static_cast<decltype(pa)>(b[at.tensor].data) + at.begin;
      auto* po = static_cast<decltype(pa)>(out[at.tensor].data) + at.begin;
      pa += at.begin;
      sweep(at.count, [&](auto io, std::int64_t i, auto)
                          BOOST_EXT_INLINE_LAMBDA { io.store(po + i, ca * io.load(pa + i) + cb * io.load(pb + i)); });
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
