// galore_step: one step of GaLore over a list of tensors: matrices by Adam in the space of the gradient's leading
// singular vectors; the others by AdamW.
//
//   u = scale * ratio[i] * g            minus its mean over all axes but the first where centralize[i]
//   P = the r leading left singular vectors of u, (rows, r)         where (t-1) mod update_gap is 0; else as it is
//   R = P^T u                           r x columns, for rows <= columns; else by right vectors: R = u P, rows x r
//   m = b1 m + (1-b1) R;  v = b2 v + (1-b2) R^2;  A = m/(1-b1^t) / (sqrt(v/(1-b2^t)) + eps)
//   d = factor P A, or factor A P^T
//   w = (1 - lr decay) w - lr d
//
// Zhao et al., "GaLore: memory-efficient LLM training by gradient low-rank projection", ICML 2024, algorithm 2. m and v
// stay as they are when P changes, as in the authors' galore-torch. There, eps stands beside the uncorrected root, and
// the decay follows the step.
//
// P is found by randomized subspace iteration: Halko, Martinsson & Tropp, "Finding structure with randomness", SIAM
// Review 53, 2011, algorithms 4.4 and 5.3, on C = u u^T (or u^T u): kGaloreIterations times Q = orth((C + 1e-6 tr(C))
// Q) from r + kGaloreExtra random columns; then the eigenvectors of Q^T C Q by Jacobi's rotations. So P has singular
// vectors, by falling values, and not their span alone. The largest element of each is positive. Where singular values
// are nearly equal, vectors of any of them may be found. The shift makes P orthonormal for a gradient of any rank, also
// of zeros. The start is drawn by Philox (ops/philox.h) from the seed, the number of the tensor (its place, unless
// `numbers` says another one) and (t-1) / update_gap.
//
// weights, masters, grads   as for optimizer_step, in C order. One of more than two axes is the matrix of its first
//                           axis by all others
// own                       float32, written: P of a matrix, its shorter side by r, which makes r; 1 <= r <= that side.
//                           Empty where AdamW steps the tensor
// first, second             float32, written: m and v. Of a matrix (r, columns), or (rows, r)
// Written tensors must not overlap one another or anything. Empty and 0-d tensors are fine, as AdamW's. One inf or nan
// in the gradient of a matrix makes all of it nan, and P until its next refresh: check before, or skip. C is summed in
// float64 of float32 sums of up to 128 products, R and P A in float32 of such; all in a fixed order. The factors of
// R and P A may be rounded to bfloat16 first (set_float32_matmul_precision()). Of settings.step,
// scale, step, hyper (b1, b2, eps, of AdamW too), lr, decay and ratio are numbers, and its array `skip` may be given.
// Arrays on the CPU only.
#pragma once

#include "ops/matrix_step.h"

namespace boost_ext {

constexpr int kGaloreIterations = 8, kGaloreExtra = 16;

// `own` of the tensors are the bases.
void galore_step(const Context& context, const ProjectedSettings& settings, const ProjectedTensors& tensors);

// From factor and update_gap: what doors have.
ProjectedSettings galore_settings(const double* numbers, std::size_t count);

BOOST_EXT_CPU_KERNEL(void, galore_step, const Context&, const ProjectedStep&)

}  // namespace boost_ext
