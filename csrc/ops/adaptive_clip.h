// adaptive_clip: adaptive gradient clipping (AGC), in place. The gradient of each unit is as long as its weights allow:
//
//   limit = clipping * scale * max(|w[o]|, eps)
//   g[o] <- limit / |g[o]| * g[o]   where |g[o]| > limit
//
// Brock et al., "High-performance large-scale image recognition without normalization", ICML 2021, eq. 3. A unit o is
// an output channel or neuron: what shares the index of the first axis, as Dense and Conv2d store it. A tensor of one
// axis or none is one unit. grads     float32, float16 or bfloat16, written; no two of them may overlap, and none may
// overlap a weight weights   float32, float16 or bfloat16, of the grads' shapes clipping  > 0; eps >= 0, the least norm
// of weights: those that begin as zeros can leave it scale     > 0, what the gradients are too large by (a loss scale);
// they stay so Norms are roots of float64 sums in a fixed order. The factor is rounded once to float32. A unit whose
// gradient has inf or nan is left as it is, so that a check finds it; one whose weights have is not clipped.
#pragma once

#include "ops/runtime.h"
#include "ops/schema.h"

namespace boost_ext {

inline constexpr Arg kAdaptiveClipArgs[] = {arrays("grads", kFloats).written().like("weights"),
                                            arrays("weights", kFloats), real("clipping", Range::positive),
                                            real("eps", Range::non_negative), real("scale", Range::positive)};
inline constexpr Schema kAdaptiveClip{"adaptive_clip", kAdaptiveClipArgs};

struct UnitLimits {
  double clipping;  // times the scale
  double eps;
};

void adaptive_clip(const Context& context, const Views& grads, const Views& weights, double clipping, double eps,
                   double scale);

// Into new gradients, since weights may share one.
inline constexpr Arg kAdaptiveClippedArgs[] = {arrays("grads", kFloats),
                                               arrays("weights", kFloats),
                                               real("clipping"),
                                               real("eps"),
                                               real("scale"),
                                               arrays("out", kFloats).like("grads").dtypes_of("grads").written()};
inline constexpr Schema kAdaptiveClipped{"adaptive_clipped", kAdaptiveClippedArgs, Devices::cpu};
void adaptive_clipped(const Context& context, const Views& grads, const Views& weights, double clipping, double eps,
                      double scale, const Views& out);

BOOST_EXT_CPU_KERNEL(void, adaptive_clip, const Context&, Tensors grads, Tensors weights, const UnitLimits& limits)

BOOST_EXT_CUDA_KERNEL(adaptive_clip, const Context&, Tensors grads, Tensors weights, const UnitLimits& limits)

}  // namespace boost_ext
