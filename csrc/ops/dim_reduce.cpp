#include "ops/dim_reduce.h"

#include <cmath>

#include "ops/bfgs_update.h"

namespace boost_ext {
namespace {

// One factor for all tensors, or one each.
void require_factors(const char* op, const char* arg, const Factors& f, std::size_t tensors) {
  if (!f.is_array) return require_finite(op, arg, f.value);
  const auto count = static_cast<std::int64_t>(tensors);
  require(f.at.size == 1 || f.at.size == count, op, ": ", arg, " must have 1 element or one for each of the ", count,
          " tensors, got ", f.at.size);
}

// As the CPU's kernels read them, `stride` apart.
struct HostFactors {
  const float* data;
  std::int64_t stride;
  explicit HostFactors(const Factors& f)
      : data(f.is_array ? static_cast<const float*>(f.at.data) : &f.value), stride(f.at.size > 1 ? 1 : 0) {}
};

// What check() has left: B and B_next are matrices, and the vectors have a number for each of their rows.
void require_extents(const char* op, const View& B, const View& s, const View& gk_last, const View& gk,
                     const View& B_next, const View& dk) {
  require_square(op, "B", B);
  require_square(op, "B_next", B_next);
  require_size(op, "B_next", B_next, B.size);
  require_size(op, "s", s, B.rows);
  require_size(op, "gk_last", gk_last, B.rows);
  require_size(op, "gk", gk, B.rows);
  require_size(op, "dk", dk, B.rows);
}

float* floats(const View& v) { return static_cast<float*>(v.data); }

}  // namespace

void dim_reduce_direction(const Context& context, const View& B, const View& s, const View& gk_last, bool started,
                          const View& gk, const Number& inv_scale, const View& B_next, const View& dk, double eps,
                          const View& out) {
  const Device device = check(kDimReduceDirection, B, s, gk_last, started, gk, inv_scale, B_next, dk, eps, out);
  require_extents(kDimReduceDirection.op, B, s, gk_last, gk, B_next, dk);
  auto* slope = static_cast<double*>(out.data);
  if (device == Device::cuda) {
    return BOOST_EXT_CUDA(dim_reduce_direction)(context, floats(B), floats(s), floats(gk_last), started, floats(gk),
                                                inv_scale, floats(B_next), floats(dk), B.rows, eps, slope);
  }
  *slope =
      BOOST_EXT_CPU(dim_reduce_direction)(floats(B), floats(s), floats(gk_last), started, floats(gk),
                                          static_cast<float>(inv_scale.value), floats(B_next), floats(dk), B.rows, eps);
}

void dim_reduce_trial(const Context& context, const Views& weights, const Views& saved, const Views& dn,
                      const Factors& step, bool save) {
  const Device device = check(kDimReduceTrial, weights, saved, dn, step, save);
  require_factors(kDimReduceTrial.op, "step", step, weights.size());
  if (device == Device::cuda) return BOOST_EXT_CUDA(dim_reduce_trial)(context, weights, saved, dn, step, save);
  const HostFactors factors(step);
  BOOST_EXT_CPU(dim_reduce_trial)(context, weights, saved, dn, factors.data, factors.stride, save);
}

void dim_reduce_apply(const Context& context, const Views& momentum, const Views& grads, const Views& grad_proj,
                      const Views& dn, double gamma, double alpha, const Number& rho, const Number& inv_scale,
                      const Views& out, const Views& saved, const Factors& lr) {
  const DimReduceCoefficients c{gamma, alpha, rho, inv_scale};
  if (saved.empty()) {
    const Device device = check(kDimReduceApply, momentum, grads, grad_proj, dn, gamma, alpha, rho, inv_scale, out);
    if (device == Device::cuda) {
      return BOOST_EXT_CUDA(dim_reduce_apply)(context, momentum, grads, grad_proj, dn, c, out, out, nullptr);
    }
    return BOOST_EXT_CPU(dim_reduce_apply)(context, momentum, grads, grad_proj, dn, c, out, out, nullptr, 0);
  }
  const Device device =
      check(kDimReduceApplyToWeights, momentum, grads, grad_proj, dn, gamma, alpha, rho, inv_scale, out, saved, lr);
  require_factors(kDimReduceApplyToWeights.op, "lr", lr, out.size());
  if (device == Device::cuda) {
    return BOOST_EXT_CUDA(dim_reduce_apply)(context, momentum, grads, grad_proj, dn, c, out, saved, &lr);
  }
  const HostFactors rates(lr);
  BOOST_EXT_CPU(dim_reduce_apply)(context, momentum, grads, grad_proj, dn, c, out, saved, rates.data, rates.stride);
}

void dim_reduce_residual(const Context& context, double gamma, double alpha, const Number& rho, const Number& inv_scale,
                         const Views& momentum, const Views& grads, const Views& grad_proj, const Views& dn) {
  dim_reduce_apply(context, momentum, grads, grad_proj, dn, gamma, alpha, rho, inv_scale, grad_proj, {}, 0);
}

}  // namespace boost_ext
