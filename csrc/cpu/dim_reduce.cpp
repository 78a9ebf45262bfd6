#include "ops/dim_reduce.h"

#include "cpu/parallel.h"
#include "ops/bfgs_update.h"

namespace boost_ext::cpu::BOOST_EXT_ISA {
namespace {

constexpr std::int64_t kBlock = 8192;  // stays in the cache from saving to the step

View vector(float* data, std::int64_t n) {
  View v;
  v.data = data;
  v.size = v.rows = n;
  return v;
}

}  // namespace

double dim_reduce_direction(const float* B, const float* s, const float* gk_last, bool started, float* gk,
                            float inv_scale, float* B_next, float* dk, std::int64_t k, double eps) {
  for (std::int64_t i = 0; i < k; ++i) gk[i] *= inv_scale;
  std::memcpy(B_next, B, static_cast<std::size_t>(k * k) * sizeof(float));
  if (started) {
    Scratch<float> y(k);
    for (std::int64_t i = 0; i < k; ++i) y[i] = gk[i] - gk_last[i];
    View matrix = vector(B_next, k * k);
    matrix.rows = k;
    bfgs_update(matrix, vector(const_cast<float*>(s), k), vector(y.get(), k), eps);
  }
  Scratch<double> sums(k);
  for (std::int64_t i = 0; i < k; ++i) sums[i] = 0;
  for (std::int64_t j = 0; j < k; ++j) {  // B is symmetric: its rows are its columns
    const double g = gk[j];
    for (std::int64_t i = 0; i < k; ++i) sums[i] += g * B_next[j * k + i];
  }
  double slope = 0;
  for (std::int64_t i = 0; i < k; ++i) {
    dk[i] = static_cast<float>(-sums[i]);
    slope += static_cast<double>(gk[i]) * dk[i];
  }
  return slope;
}

void dim_reduce_trial(const Context& context, Tensors weights, Tensors saved, Tensors dn, const float* step,
                      std::int64_t step_stride, bool save) {
  Blocks(weights, kBlock).run(context.threads, [&](Block at) {
    const float factor = step[at.tensor * step_stride];
    const float* d = static_cast<const float*>(dn[at.tensor].data) + at.begin;
    typed(weights[at.tensor], [&](auto* w) BOOST_EXT_INLINE_LAMBDA {
      auto* keep = static_cast<decltype(w)>(saved[at.tensor].data) + at.begin;
      w += at.begin;
      if (save) std::memcpy(keep, w, static_cast<std::size_t>(at.count) * sizeof *w);
      if (factor == 0) {  // 0 * inf is no restored weight
        std::memcpy(w, keep, static_cast<std::size_t>(at.count) * sizeof *w);
        return;
      }
      sweep(at.count, [&](auto io, std::int64_t i, auto)
                          BOOST_EXT_INLINE_LAMBDA { io.store(w + i, io.load(keep + i) + factor * io.load(d + i)); });
    });
  });
}

void dim_reduce_apply(const Context& context, Tensors momentum, Tensors grads, Tensors grad_proj, Tensors dn,
                      const DimReduceCoefficients& c, Tensors out, Tensors saved, const float* lr,
                      std::int64_t lr_stride) {
  const auto gamma = static_cast<float>(c.gamma);
  const auto alpha = static_cast<float>(c.alpha);
  const auto rho = static_cast<float>(c.rho.value);
  const auto inv_scale = static_cast<float>(c.inv_scale.value);
  Blocks(grads).run(context.threads, [&](Block at) {
    float* m = static_cast<float*>(momentum[at.tensor].data) + at.begin;
    const float* proj = static_cast<const float*>(grad_proj[at.tensor].data) + at.begin;
    const float* d = static_cast<const float*>(dn[at.tensor].data) + at.begin;
    typed(grads[at.tensor], [&](auto* g) BOOST_EXT_INLINE_LAMBDA {
      const auto delta = [&](auto io, std::int64_t i) BOOST_EXT_INLINE_LAMBDA {
        const F next = gamma * io.load(m + i) + inv_scale * io.load(g + at.begin + i) - io.load(proj + i);
        io.store(m + i, next);
        return rho == 0 ? alpha * next : alpha * next - rho * io.load(d + i);  // a refused dn may hold inf
      };
      if (lr == nullptr) {
        float* o = static_cast<float*>(out[at.tensor].data) + at.begin;
        sweep(at.count, [&](auto io, std::int64_t i, auto) BOOST_EXT_INLINE_LAMBDA { io.store(o + i, delta(io, i)); });
        return;
      }
      const float rate = lr[at.tensor * lr_stride];
      typed(out[at.tensor], [&](auto* w) BOOST_EXT_INLINE_LAMBDA {
        const auto* from = static_cast<decltype(w)>(saved[at.tensor].data) + at.begin;
        sweep(at.count, [&](auto io, std::int64_t i, auto) BOOST_EXT_INLINE_LAMBDA {
          io.store(w + at.begin + i, io.load(from + i) - rate * delta(io, i));
        });
      });
    });
  });
}

}  // namespace boost_ext::cpu::BOOST_EXT_ISA
