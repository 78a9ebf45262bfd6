// batch_norm and its gradient, for training: each channel less its mean and divided by its standard deviation, then
// scaled and shifted. The moving statistics follow.
//
//   y[:, c]   <- n[:, c] gamma[c] + beta[c],   n[:, c] = (x[:, c] - mean[c]) rstd[c],   rstd = 1 / sqrt(var + epsilon)
//   moving_mean     <- momentum moving_mean + (1 - momentum) mean
//   moving_variance <- momentum moving_variance + (1 - momentum) var k / (k - 1)
//   dx[:, c]  <- gamma[c] rstd[c] (dy[:, c] - dbeta[c] / k - n[:, c] dgamma[c] / k)
//   dgamma[c] <- sum of dy[:, c] n[:, c],   dbeta[c] <- sum of dy[:, c]
//
// mean and var are those of the k = n m elements of a channel. Ioffe and Szegedy, "Batch normalization", arXiv
// 1502.03167, algorithms 1 and 2 and section 3.
// x, dy        float32 (n, c, m), n c m > 0
// gamma, beta  float32 (c,)
// momentum     0..1
// moving_mean, moving_variance  float32 (c,), written. With k = 1 the variance becomes nan, as MindSpore's
// mean, rstd   float32 (c,), written by batch_norm and read by the gradient
// y, dx        like x, written; dgamma, dbeta float32 (c,), written
// A channel belongs to one thread. Where it fits into the second cache, memory is read once. Sums are float32 of few
// elements and float64 beyond, the squares those of differences to a mean; their order is fixed.
#pragma once

#include "ops/runtime.h"
#include "ops/schema.h"

namespace boost_ext {

inline constexpr Arg kBatchNormArgs[] = {array("x", kF32),
                                         array("gamma", kF32),
                                         array("beta", kF32),
                                         real("epsilon", Range::non_negative),
                                         real("momentum"),
                                         array("moving_mean", kF32).written(),
                                         array("moving_variance", kF32).written(),
                                         array("y", kF32).written(),
                                         array("mean", kF32).written(),
                                         array("rstd", kF32).written()};
inline constexpr Schema kBatchNorm{"batch_norm", kBatchNormArgs, Devices::cpu};

inline constexpr Arg kBatchNormGradientArgs[] = {array("dy", kF32),
                                                 array("x", kF32),
                                                 array("gamma", kF32),
                                                 array("mean", kF32),
                                                 array("rstd", kF32),
                                                 array("dx", kF32).written(),
                                                 array("dgamma", kF32).written(),
                                                 array("dbeta", kF32).written()};
inline constexpr Schema kBatchNormGradient{"batch_norm_gradient", kBatchNormGradientArgs, Devices::cpu};

void batch_norm(const Context& context, const View& x, const View& gamma, const View& beta, double epsilon,
                double momentum, const View& moving_mean, const View& moving_variance, const View& y, const View& mean,
                const View& rstd);
void batch_norm_gradient(const Context& context, const View& dy, const View& x, const View& gamma, const View& mean,
                         const View& rstd, const View& dx, const View& dgamma, const View& dbeta);

struct BatchNorm {
  std::int64_t samples, channels, plane;
  const float *x, *gamma, *beta;
  double epsilon, momentum;
  float *moving_mean, *moving_variance, *y, *mean, *rstd;
};
struct BatchNormGradient {
  std::int64_t samples, channels, plane;
  const float *dy, *x, *gamma, *mean, *rstd;
  float *dx, *dgamma, *dbeta;
};

BOOST_EXT_CPU_KERNEL(void, batch_norm, const Context&, const BatchNorm&)
BOOST_EXT_CPU_KERNEL(void, batch_norm_gradient, const Context&, const BatchNormGradient&)

}  // namespace boost_ext
