#include "ops/layer_norm.h"

#include "cpu/column_sums.h"

namespace boost_ext::cpu::BOOST_EXT_ISA {
namespace {

constexpr std::int64_t kPasses = 3;  // over a row, the later ones in the first cache

struct Moments {
  float mean, rstd;
};

template <class T> BOOST_EXT_INLINE Moments moments(const T* row, std::int64_t n, double epsilon) {
  const auto size = static_cast<double>(n);
  const auto mean = static_cast<float>(
      sum_of<Full>(n, [&](auto io, std::int64_t i) BOOST_EXT_INLINE_LAMBDA { return io.load(row + i); }) / size);
  const double squares = sum_of<Full>(n, [&](auto io, std::int64_t i) BOOST_EXT_INLINE_LAMBDA {
    const F d = io.load(row + i) - all(mean);
    return io.only(d * d);
  });
  return {mean, static_cast<float>(1 / square_root(squares / size + epsilon))};
}

}  // namespace

void layer_norm(const Context& context, const View& x, const float* gamma, const float* beta, double epsilon,
                const View& y) {
  const std::int64_t n = x.width;
  on_threads(context.threads, kPasses * x.size, x.rows, [&](std::int64_t begin, std::int64_t end) {
    typed(y, [&](auto* to) {
      for (std::int64_t r = begin; r < end; ++r) {
        const auto* row = static_cast<decltype(to)>(x.data) + r * n;
        auto* out = to + r * n;
        const Moments m = moments(row, n, epsilon);
        sweep<Full>(n, [&](auto io, std::int64_t i, auto) BOOST_EXT_INLINE_LAMBDA {
          io.store(out + i, m.rstd * (io.load(row + i) - all(m.mean)) * io.load(gamma + i) + io.load(beta + i));
        });
      }
    });
  });
}

void layer_norm_gradient(const Context& context, const View& dy, const View& x, const float* gamma, double epsilon,
                         const View& dx, float* dgamma, float* dbeta) {
  const std::int64_t n = x.width;
  Scratch<Moments> of_rows(x.rows);
  on_threads(context.threads, 2 * kPasses * x.size, x.rows, [&](std::int64_t begin, std::int64_t end) {
    typed(dx, [&](auto* to) {
      for (std::int64_t r = begin; r < end; ++r) {
        const auto *of = static_cast<decltype(to)>(dy.data) + r * n, *row = static_cast<decltype(to)>(x.data) + r * n;
        auto* out = to + r * n;
        const Moments m = of_rows[r] = moments(row, n, epsilon);
        D sums[2][2] = {};
        sweep<Full>(n, [&](auto io, std::int64_t i, auto u) BOOST_EXT_INLINE_LAMBDA {
          const F h = io.load(of + i) * io.load(gamma + i);
          D(&acc)[2] = sums[decltype(u)::value % 2];
          acc[0] = acc[0] + widen(h);
          acc[1] = acc[1] + widen(h * (m.rstd * (io.load(row + i) - all(m.mean))));
        });
        const auto size = static_cast<double>(n);
        const F a = all(static_cast<float>(sum(sums[0][0] + sums[1][0]) / size));
        const auto b = static_cast<float>(sum(sums[0][1] + sums[1][1]) / size);
        sweep<Full>(n, [&](auto io, std::int64_t i, auto) BOOST_EXT_INLINE_LAMBDA {
          const F h = io.load(of + i) * io.load(gamma + i), normed = m.rstd * (io.load(row + i) - all(m.mean));
          io.store(out + i, m.rstd * (h - a - b * normed));
        });
      }
    });
  });
  typed(dy, [&](const auto* of) {
    const auto* from = static_cast<decltype(of)>(x.data);
    column_sums<2>(context.threads, x.rows, n, {dgamma, dbeta},
                   [&](auto io, std::int64_t r, std::int64_t j, F(&term)[2]) BOOST_EXT_INLINE_LAMBDA {
                     const Moments m = of_rows[r];
                     term[1] = io.load(of + r * n + j);
                     term[0] = term[1] * (m.rstd * (io.load(from + r * n + j) - all(m.mean)));
                   });
  });
}

}  // namespace boost_ext::cpu::BOOST_EXT_ISA
