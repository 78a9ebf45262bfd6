// The three native phases of a dimension-reduced training step, around its two projections.
//
// dim_reduce_direction: the quasi-Newton direction in the subspace, as a proposal; nothing is committed.
//   gk <- inv_scale * gk
//   B_next = B, updated with s and y = gk - gk_last if `started` (bfgs_update, same eps);   dk = -B_next . gk
//   returns slope = gk . dk
//   B, B_next (k, k); s, gk_last, gk, dk (k,); all float32; gk, B_next and dk are written.
//
// dim_reduce_trial: the weights at a point of the line search.
//   save: saved <- w, then in any case  w <- saved + step[t] * dn   (tensor t has its own step: the learning rate times
//   rho^m). step = 0 restores the saved bits exactly.
//   weights and saved share sizes and dtypes; dn float32, same sizes; step float32, one element or one a tensor.
//
// dim_reduce_apply: residual momentum and the step to take, in one pass.
//   m     <- gamma * m + inv_scale * g - proj
//   delta  = alpha * m - rho * dn
//   out   <- delta                       (out: float32; may be proj itself, tensor by tensor), or with weights
//   w     <- saved - lr[t] * delta       (saved may be w itself)
//   m, proj, dn float32; g float32, float16 or bfloat16; all of the same sizes.
//
// Formulas: the dim_reduce section of mindspore.boost's documentation. The gradient enters everything through
// inv_scale * g, so that a loss scale that is a power of two changes no bit of the result. CUDA: the CPU's bits. rho,
// inv_scale, step and lr may lie on the device, where nobody checks that they are finite.
#pragma once

#include "ops/runtime.h"
#include "ops/schema.h"

namespace boost_ext {

inline constexpr Arg kDimReduceDirectionArgs[] = {array("B", kF32),
                                                  array("s", kF32),
                                                  array("gk_last", kF32),
                                                  flag("started"),
                                                  array("gk", kF32).written(),
                                                  number("inv_scale").inverse("scale"),
                                                  array("B_next", kF32).written(),
                                                  array("dk", kF32).written(),
                                                  real("eps", Range::non_negative),
                                                  answer("out", kF64)};
inline constexpr Arg kDimReduceTrialArgs[] = {
    arrays("weights", kFloats).written(), arrays("saved", kFloats).like("weights").dtypes_of("weights").written("save"),
    arrays("dn", kF32).like("weights"), array("step", kF32).optional(), flag("save")};
inline constexpr Arg kDimReduceApplyArgs[] = {arrays("momentum", kF32).like("grads").written(),
                                              arrays("grads", kFloats),
                                              arrays("grad_proj", kF32).like("grads").twin(),
                                              arrays("dn", kF32).like("grads"),
                                              real("gamma"),
                                              real("alpha"),
                                              number("rho"),
                                              number("inv_scale"),
                                              arrays("out", kF32).like("grads").written().twin()};
inline constexpr Arg kDimReduceApplyToWeightsArgs[] = {
    arrays("momentum", kF32).like("grads").written(),
    arrays("grads", kFloats),
    arrays("grad_proj", kF32).like("grads"),
    arrays("dn", kF32).like("grads"),
    real("gamma"),
    real("alpha"),
    number("rho"),
    number("inv_scale"),
    arrays("out", kFloats).like("grads").written().twin(),
    arrays("saved", kFloats).like("out").dtypes_of("out").twin().optional(),
    array("lr", kF32).optional()};
inline constexpr Schema kDimReduceDirection{"dim_reduce_direction", kDimReduceDirectionArgs};
inline constexpr Schema kDimReduceTrial{"dim_reduce_trial", kDimReduceTrialArgs};
inline constexpr Schema kDimReduceApply{"dim_reduce_apply", kDimReduceApplyArgs};
inline constexpr Schema kDimReduceApplyToWeights{"dim_reduce_apply", kDimReduceApplyToWeightsArgs};

// out: one float64, the slope.
void dim_reduce_direction(const Context& context, const View& B, const View& s, const View& gk_last, bool started,
                          const View& gk, const Number& inv_scale, const View& B_next, const View& dk, double eps,
                          const View& out);

void dim_reduce_trial(const Context& context, const Views& weights, const Views& saved, const Views& dn,
                      const Factors& step, bool save);

struct DimReduceCoefficients {
  double gamma;
  double alpha;
  Number rho;
  Number inv_scale;
};
// With `saved` the weights are written into `out`, otherwise delta, and lr is not used.
void dim_reduce_apply(const Context& context, const Views& momentum, const Views& grads, const Views& grad_proj,
                      const Views& dn, double gamma, double alpha, const Number& rho, const Number& inv_scale,
                      const Views& out, const Views& saved, const Factors& lr);

// delta over grad_proj.
inline constexpr Arg kDimReduceResidualArgs[] = {real("gamma"),
                                                 real("alpha"),
                                                 number("rho"),
                                                 number("inv_scale").inverse("scale"),
                                                 arrays("momentum", kF32).written(),
                                                 arrays("grads", kFloats),
                                                 arrays("grad_proj", kF32).written(),
                                                 arrays("dn", kF32)};
inline constexpr Schema kDimReduceResidual{"dim_reduce_apply", kDimReduceResidualArgs, Devices::cpu};
void dim_reduce_residual(const Context& context, double gamma, double alpha, const Number& rho, const Number& inv_scale,
                         const Views& momentum, const Views& grads, const Views& grad_proj, const Views& dn);

BOOST_EXT_CPU_KERNEL(double, dim_reduce_direction, const float* B, const float* s, const float* gk_last, bool started,
                     float* gk, float inv_scale, float* B_next, float* dk, std::int64_t k, double eps)
BOOST_EXT_CPU_KERNEL(void, dim_reduce_trial, const Context&, Tensors weights, Tensors saved, Tensors dn,
                     const float* step, std::int64_t step_stride, bool save)
// lr == nullptr: out receives delta, `saved` is not read.
BOOST_EXT_CPU_KERNEL(void, dim_reduce_apply, const Context&, Tensors momentum, Tensors grads, Tensors grad_proj,
                     Tensors dn, const DimReduceCoefficients& c, Tensors out, Tensors saved, const float* lr,
                     std::int64_t lr_stride)

BOOST_EXT_CUDA_KERNEL(dim_reduce_direction, const Context&, const float* B, const float* s, const float* gk_last,
                      bool started, float* gk, const Number& inv_scale, float* B_next, float* dk, std::int64_t k,
                      double eps, double* slope)
BOOST_EXT_CUDA_KERNEL(dim_reduce_trial, const Context&, Tensors weights, Tensors saved, Tensors dn, const Factors& step,
                      bool save)
// lr == nullptr: as on the CPU.
BOOST_EXT_CUDA_KERNEL(dim_reduce_apply, const Context&, Tensors momentum, Tensors grads, Tensors grad_proj, Tensors dn,
                      const DimReduceCoefficients& c, Tensors out, Tensors saved, const Factors* lr)

}  // namespace boost_ext
