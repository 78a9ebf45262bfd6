// layer_norm and its gradient: each row less its mean and divided by its standard deviation, then scaled and shifted.
//
//   y[r]   <- n[r] gamma + beta,   n[r] = (x[r] - mean(x[r])) rstd[r],   rstd[r] = 1 / sqrt(var(x[r]) + epsilon)
//   dx[r]  <- rstd[r] (h - mean(h) - n[r] mean(h n[r])),   h = dy[r] gamma
//   dgamma <- sum over r of dy[r] n[r],   dbeta <- sum over r of dy[r]
//
// Ba, Kiros and Hinton, "Layer normalization", arXiv 1607.06450, eq. 3 and 4.
// x, dy         float32, float16 or bfloat16, (rows, n), n > 0, of one dtype
// gamma, beta   float32 (n,)
// y, dx         like x, written; dgamma, dbeta float32 (n,), written
// The gradient finds mean and rstd again: the row is in the first cache then. Sums over a row are float64, those over
// rows float32 of 64 of them and float64 beyond; their order is fixed.
#pragma once

#include "ops/runtime.h"
#include "ops/schema.h"

namespace boost_ext {

inline constexpr Arg kLayerNormArgs[] = {array("x", kFloats), array("gamma", kF32), array("beta", kF32),
                                         real("epsilon", Range::non_negative),
                                         array("y", kFloats).dtypes_of("x").written()};
inline constexpr Schema kLayerNorm{"layer_norm", kLayerNormArgs, Devices::cpu};

inline constexpr Arg kLayerNormGradientArgs[] = {array("dy", kFloats),
                                                 array("x", kFloats).dtypes_of("dy"),
                                                 array("gamma", kF32),
                                                 real("epsilon", Range::non_negative),
                                                 array("dx", kFloats).dtypes_of("dy").written(),
                                                 array("dgamma", kF32).written(),
                                                 array("dbeta", kF32).written()};
inline constexpr Schema kLayerNormGradient{"layer_norm_gradient", kLayerNormGradientArgs, Devices::cpu};

void layer_norm(const Context& context, const View& x, const View& gamma, const View& beta, double epsilon,
                const View& y);
void layer_norm_gradient(const Context& context, const View& dy, const View& x, const View& gamma, double epsilon,
                         const View& dx, const View& dgamma, const View& dbeta);

BOOST_EXT_CPU_KERNEL(void, layer_norm, const Context&, const View& x, const float* gamma, const float* beta,
                     double epsilon, const View& y)
BOOST_EXT_CPU_KERNEL(void, layer_norm_gradient, const Context&, const View& dy, const View& x, const float* gamma,
                     double epsilon, const View& dx, float* dgamma, float* dbeta)

}  // namespace boost_ext
