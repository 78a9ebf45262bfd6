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

// (M + sqrt(damping) I)^-1 of the A and the G of all layers; nothing happens in steps that are skipped, or not due (see
// is_due in ops/covariance.h). The gradients of outputs were own_scale * scale times too large. damping: one number, or
// one for each step, of which the last is good for all that follow.
inline constexpr Arg kLayerInversesArgs[] = {integer("step"),
                                             flag("skip"),
                                             integer("frequency"),
                                             real("own_scale"),
                                             real("scale"),
                                             array("damping", kF32),
                                             arrays("A", kF64),
                                             arrays("G", kF64),
                                             arrays("A_inverse", kF32).written(),
                                             arrays("G_inverse", kF32).written(),
                                             answer("inverted", kF32)};
inline constexpr Schema kLayerInverses{"damped_inverse", kLayerInversesArgs, Devices::cpu};
void layer_inverses(const Context& context, std::int64_t step, bool skip, std::int64_t frequency, double own_scale,
                    double scale, const View& damping, const Views& A, const Views& G, const Views& A_inverse,
                    const Views& G_inverse, const View& inverted);

BOOST_EXT_CPU_KERNEL(bool, damped_inverse, const Context&, Tensors matrices, const std::int64_t* extent,
                     const double* factor, const double* damping, Tensors out)

BOOST_EXT_CUDA_KERNEL(damped_inverse, const Context&, Tensors matrices, const std::int64_t* extent,
                      const double* factor, const double* damping, Tensors out, float* inverted)

}  // namespace boost_ext
