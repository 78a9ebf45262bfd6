#include "ops/adaptive_clip.h"

#include "cpu/parallel.h"
#include "cpu/sums_of_products.h"

namespace boost_ext::cpu::BOOST_EXT_ISA {
namespace {

template <class T> BOOST_EXT_INLINE double norm(const T* x, std::int64_t n) {
  return __builtin_sqrt(wide_sum_of_squares(x, n));
}

// What a gradient this long is multiplied by. Not with inf or nan: both comparisons are false then.
double factor_of(double g, double w, const UnitLimits& limits) {
  const double limit = limits.clipping * (w < limits.eps ? limits.eps : w);
  return g > limit && g <= __DBL_MAX__ ? limit / g : 1;
}

}  // namespace

// A unit is one thread's: its norm is known before the second visit, which finds it in the cache.
void adaptive_clip(const Context& context, Tensors grads, Tensors weights, const UnitLimits& limits) {
  Scratch<std::int64_t> first(grads.count + 1);
  std::int64_t elements = first[0] = 0;
  for (std::int64_t t = 0; t < grads.count; ++t) {
    first[t + 1] = first[t] + grads[t].rows;
    elements += grads[t].size;
  }
  on_threads(context.threads, 3 * elements, first[grads.count], [&](std::int64_t begin, std::int64_t end) {
    std::int64_t t = 0;
    for (std::int64_t r = begin; r < end; ++r) {
      while (first[t + 1] <= r) ++t;
      const std::int64_t n = grads[t].size / grads[t].rows, at = (r - first[t]) * n;
      double w = 0;
      typed(weights[t], [&](auto* p) BOOST_EXT_INLINE_LAMBDA { w = norm(p + at, n); });
      typed(grads[t], [&](auto* p) BOOST_EXT_INLINE_LAMBDA {
        auto* g = p + at;
        const auto factor = static_cast<float>(factor_of(norm(g, n), w, limits));
        if (factor == 1) return;
        sweep(n,
              [&](auto io, std::int64_t i, auto) BOOST_EXT_INLINE_LAMBDA { io.store(g + i, factor * io.load(g + i)); });
      });
    }
  });
}

}  // namespace boost_ext::cpu::BOOST_EXT_ISA
