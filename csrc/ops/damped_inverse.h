// damped_inverse: inverses of symmetric positive semidefinite matrices with damping, a list of batches in one call.
//
//   out[i] <- (factor_i * M[i] + damping_i * I)^-1
//
// Martens & Grosse, "Optimizing neural networks with Kronecker-factored approximate curvature", ICML 2015, section 6.3;
// Chen et al., "THOR", AAAI 2021, equation 6.
// matrices  float64, (batch, b, b), of which the upper triangles are read; or (d,): a diagonal matrix
// out       float32, of the same shape, written; symmetric to the last bit
// factor, damping  one number a tensor, finite and >= 0
// Cholesky's method in float64; one rounding to float32. `inverted` says whether all were. A matrix that is not
// positive definite with its damping, or holds inf or nan, and one whose inverse is beyond float32, leave their place
// in out as it is. On CUDA large matrices are inverted with products of cuBLAS's, where there is one (docs/cuda.md), in
// float64 too.
#pragma once

#include "ops/runtime.h"
#include "ops/schema.h"

namespace boost_ext {

inline constexpr Arg kDampedInverseArgs[] = {arrays("matrices", kF64), reals("factor"), reals("damping"),
                                             arrays("out", kF32).like("matrices").written(), answer("inverted", kF32)};
inline constexpr Schema kDampedInverse{"damped_inverse", kDampedInverseArgs};

// inverted: one float32, 1 or 0.
void damped_inverse(const Context& context, const Views& matrices, const std::vector<double>& factor,
                    const std::vector<double>& damping, const Views& out, const View& inverted);

struct InverseSettings {
  std::int32_t step, frequency;  // see is_due in ops/covariance.h
  bool skip;
  double own_scale, scale;  // the gradients of outputs were this many times too large
  View damping;             // float32: one number, or one for each step, of which the last is good for all that follow
};

// (M + sqrt(damping) I)^-1 of the A of all layers, and behind them of all their G; nothing happens in steps that are
// skipped or not due. Returns false if some matrix could not be inverted.
bool layer_inverses(const Context& context, const InverseSettings& settings, const Views& matrices, const Views& out);

BOOST_EXT_CPU_KERNEL(bool, damped_inverse, const Context&, Tensors matrices, const std::int64_t* extent,
                     const double* factor, const double* damping, Tensors out)

BOOST_EXT_CUDA_KERNEL(damped_inverse, const Context&, Tensors matrices, const std::int64_t* extent,
                      const double* factor, const double* damping, Tensors out, float* inverted)

}  // namespace boost_ext
