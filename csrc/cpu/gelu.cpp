#include "ops/gelu.h"

#include "cpu/exponential.h"
#include "cpu/parallel.h"

namespace boost_ext::cpu::BOOST_EXT_ISA {
namespace {

constexpr std::int64_t kWork = 10;  // what an element costs, in elements that are copied

struct Normal {
  F below, density;  // Phi(x), and phi(x) but for a factor
};

// erfc(z) is e^(-z^2) times a function that is nearly 1 / z for large z: a polynomial in t = 1 / (1 + 0.42 z) without a
// constant term. Least largest relative error, by Lawson's weights: 2e-7, and 6e-7 with the rounding.
BOOST_EXT_INLINE Normal normal(F x) {
  const F z = 0.707106781F * abs(x);
  const F t = all(1) / (all(1) + 0.42F * z);
  const F e = exponential(-1 * (z * z));
  F p = 0.0693461448F * t + all(-0.316536009F);
  p = p * t + all(0.434199482F);
  p = p * t + all(-0.1245052F);
  p = p * t + all(0.265520751F);
  p = p * t + all(0.195714384F);
  p = p * t + all(0.239425421F);
  p = p * t + all(0.236834839F);
  const F half = 0.5F * (p * t) * e;
  return {where_less(x, all(0), half, all(1) - half), e};
}

struct Exact {
  BOOST_EXT_INLINE F value(F x) const { return x * normal(x).below; }
  BOOST_EXT_INLINE F slope(F x) const {
    const Normal n = normal(x);
    return n.below + 0.39894228F * (x * n.density);
  }
};

struct Tanh {
  // (1 + tanh(u)) / 2 is 1 / (1 + e^(-2u)).
  BOOST_EXT_INLINE F share(F x) const {
    return all(1) / (all(1) + exponential(-1.59576912F * (x + 0.044715F * (x * x * x))));
  }
  BOOST_EXT_INLINE F value(F x) const { return x * share(x); }
  BOOST_EXT_INLINE F slope(F x) const {
    // From 20 on the slope is 0 or 1, and the square of x could be inf.
    const F near = where_less(all(20), abs(x), copy_sign(all(20), x), x);
    const F s = share(near);
    return s + near * s * (all(1) - s) * (all(1.59576912F) + 0.214070629F * (near * near));
  }
};

template <class Kind, class T> BOOST_EXT_INLINE void values(const T* x, T* y, std::int64_t n) {
  sweep<Full>(
      n, [&](auto io, std::int64_t i, auto) BOOST_EXT_INLINE_LAMBDA { io.store(y + i, Kind().value(io.load(x + i))); });
}
template <class Kind, class T> BOOST_EXT_INLINE void slopes(const T* dy, const T* x, T* dx, std::int64_t n) {
  sweep<Full>(n, [&](auto io, std::int64_t i, auto)
                     BOOST_EXT_INLINE_LAMBDA { io.store(dx + i, io.load(dy + i) * Kind().slope(io.load(x + i))); });
}

}  // namespace

void gelu(const Context& context, const View& x, bool tanh, const View& y) {
  Blocks(Tensors(&y, 1))
      .run(
          context.threads,
          [&](Block at) {
            typed(y, [&](auto* to) {
              const auto* from = static_cast<decltype(to)>(x.data) + at.begin;
              tanh ? values<Tanh>(from, to + at.begin, at.count) : values<Exact>(from, to + at.begin, at.count);
            });
          },
          kWork);
}

void gelu_gradient(const Context& context, const View& dy, const View& x, bool tanh, const View& dx) {
  Blocks(Tensors(&dx, 1))
      .run(
          context.threads,
          [&](Block at) {
            typed(dx, [&](auto* to) {
              const auto* of = static_cast<decltype(to)>(dy.data) + at.begin;
              const auto* from = static_cast<decltype(to)>(x.data) + at.begin;
              tanh ? slopes<Tanh>(of, from, to + at.begin, at.count) : slopes<Exact>(of, from, to + at.begin, at.count);
            });
          },
          kWork);
}

}  // namespace boost_ext::cpu::BOOST_EXT_ISA
