#include "ops/cross_entropy.h"

#include "cpu/exponential.h"
#include "cpu/parallel.h"

namespace boost_ext::cpu::BOOST_EXT_ISA {
namespace {

constexpr std::int64_t kWork = 8;  // what an element costs, in elements that are copied

template <class T> BOOST_EXT_INLINE float log_sum(const T* row, std::int64_t n) {
  const float most = largest_of(row, n);
  const F m = all(most);
  const double total = sum_of<Full>(
      n, [&](auto io, std::int64_t i) BOOST_EXT_INLINE_LAMBDA { return io.only(exponential(io.load(row + i) - m)); });
  return static_cast<float>(most + __builtin_log(total));
}

}  // namespace

double cross_entropy(const Context& context, const View& x, const std::int32_t* labels, std::int32_t ignored,
                     float* lse) {
  const std::int64_t n = x.width;
  double loss = 0;
  typed(x, [&](const auto* p) {
    on_threads(context.threads, kWork * x.size, x.rows, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) lse[r] = log_sum(p + r * n, n);
    });
    for (std::int64_t r = 0; r < x.rows; ++r) {
      if (labels[r] != ignored) loss += static_cast<double>(lse[r]) - as_float(p + r * n + labels[r]);
    }
  });
  return loss;
}

void cross_entropy_gradient(const Context& context, const View& x, const std::int32_t* labels, const float* lse,
                            std::int32_t ignored, float factor, const View& dx) {
  const std::int64_t n = x.width;
  on_threads(context.threads, kWork * x.size, x.rows, [&](std::int64_t begin, std::int64_t end) {
    typed(dx, [&](auto* to) {
      for (std::int64_t r = begin; r < end; ++r) {
        const auto* row = static_cast<decltype(to)>(x.data) + r * n;
        auto* out = to + r * n;
        if (labels[r] == ignored) {
          std::memset(static_cast<void*>(out), 0, static_cast<std::size_t>(n) * sizeof *out);
          continue;
        }
        const F shift = all(lse[r]);
        sweep<Full>(n, [&](auto io, std::int64_t i, auto) BOOST_EXT_INLINE_LAMBDA {
          io.store(out + i, factor * exponential(io.load(row + i) - shift));
        });
        const std::int64_t label = labels[r];
        const Part one{1};
        one.store(out + label, factor * (exponential(one.load(row + label) - shift) - all(1)));
      }
    });
  });
}

}  // namespace boost_ext::cpu::BOOST_EXT_ISA
