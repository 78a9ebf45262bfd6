#include "ops/layer_norm.h"

#include "cpu/column_sums.h"

namespace boost_ext::cpu::BOOST_EXT_ISA {
namespace {

constexpr std::int64_t kPasses = 3;  // over a row, the later ones in the first cache

// The sum over i of term(io, i).
template <class Term> BOOST_EXT_INLINE double row_sum(std::int64_t n, Term term) {
  D sums[kAccumulators] = {};
  sweep<Full>(n, [&](auto io, std::int64_t i, auto u) BOOST_EXT_INLINE_LAMBDA {
    D& acc = sums[decltype(u)::value];
    acc = acc + widen(term(io, i));
  });
  return sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

}  // namespace

void layer_norm(const Context& context, const View& x, const float* gamma, const float* beta, double epsilon,
                const View& y, float* mean, float* rstd) {
  const std::int64_t n = x.width;
  on_threads(context.threads, kPasses * x.size, x.rows, [&](std::int64_t begin, std::int64_t end) {
    typed(y, [&](auto* to) {
      for (std::int64_t r = begin; r < end; ++r) {
        const auto* row = static_cast<decltype(to)>(x.data) + r * n;
        auto* out = to + r * n;
        const auto size = static_cast<double>(n);
        const double average = row_sum(n, [&](auto io, std::int64_t i) BOOST_EXT_INLINE_LAMBDA { return io.load(row + i); }) / size;
        mean[r] = static_cast<float>(average);
        const F m = all(mean[r]);
        const double squares = row_sum(n, [&](auto io, std::int64_t i) BOOST_EXT_INLINE_LAMBDA {
          const F d = io.load(row + i) - m;
          return io.only(d * d);
        });
        rstd[r] = static_cast<float>(1 / square_root(squares / size + epsilon));
        sweep<Full>(n, [&](auto io, std::int64_t i, auto) BOOST_EXT_INLINE_LAMBDA {
          io.store(out + i, (rstd[r] * (io.load(row + i) - m)) * io.load(gamma + i) + io.load(beta + i));
        });
      }
    });
  });
}

void layer_norm_gradient(const Context& context, const View& dy, const View& x, const float* mean, const float* rstd,
                         const float* gamma, const View& dx, float* dgamma, float* dbeta) {
  const std::int64_t n = x.width;
  on_threads(context.threads, kPasses * x.size, x.rows, [&](std::int64_t begin, std::int64_t end) {
    typed(dx, [&](auto* to) {
      for (std::int64_t r = begin; r < end; ++r) {
        const auto *of = static_cast<decltype(to)>(dy.data) + r * n, *row = static_cast<decltype(to)>(x.data) + r * n;
        auto* out = to + r * n;
        const F m = all(mean[r]);
        const float factor = rstd[r];
        D sums[2][2] = {};
        sweep<Full>(n, [&](auto io, std::int64_t i, auto u) BOOST_EXT_INLINE_LAMBDA {
          const F h = io.load(of + i) * io.load(gamma + i);
          D(&acc)[2] = sums[decltype(u)::value % 2];
          acc[0] = acc[0] + widen(h);
          acc[1] = acc[1] + widen(h * (factor * (io.load(row + i) - m)));
        });
        const auto size = static_cast<double>(n);
        const F a = all(static_cast<float>(sum(sums[0][0] + sums[1][0]) / size));
        const auto b = static_cast<float>(sum(sums[0][1] + sums[1][1]) / size);
        sweep<Full>(n, [&](auto io, std::int64_t i, auto) BOOST_EXT_INLINE_LAMBDA {
          const F h = io.load(of + i) * io.load(gamma + i), normed = factor * (io.load(row + i) - m);
          io.store(out + i, factor * (h - a - b * normed));
        });
      }
    });
  });
  typed(dy, [&](const auto* of) {
    const auto* from = static_cast<decltype(of)>(x.data);
    column_sums<2>(context.threads, x.rows, n, {dgamma, dbeta},
                   [&](auto io, std::int64_t r, std::int64_t j, F(&term)[2]) BOOST_EXT_INLINE_LAMBDA {
                     term[1] = io.load(of + r * n + j);
                     term[0] = term[1] * (rstd[r] * (io.load(from + r * n + j) - all(mean[r])));
                   });
  });
}

}  // namespace boost_ext::cpu::BOOST_EXT_ISA
