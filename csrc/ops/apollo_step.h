// apollo_step: one step of APOLLO over a list of tensors: matrices by their gradient, scaled by what Adam makes of a
// random projection of it; the others by AdamW.
//
//   u = scale * ratio[i] * g            minus its mean over all axes but the first where centralize[i]
//   R = P u                             r x columns, for rows <= columns; else R = u P^T, rows x r
//   m = b1 m + (1-b1) R;  v = b2 v + (1-b2) R^2;  A = m/(1-b1^t) / (sqrt(v/(1-b2^t)) + eps)
//   s_j = |A_j| / |R_j|                 of each column of R, or row where R has the rows; tensor_wise: s = |A| / |R|
//   d = sqrt(factor) u s                each column (row) times its s_j;  n = |d|
//   d, n = d limit last / n, limit last      where last > 0 and n > limit last;  then last = n
//   w = (1 - lr decay) w - lr d
//
// Zhu et al., "APOLLO: SGD-like memory, AdamW-level performance", MLSys 2025, algorithm 1; tensor_wise with r = 1 and
// factor 128 is APOLLO-Mini. The limit of a growing norm is that of Chen et al., "Fira", 2024. What differs from the
// authors' apollo-torch: there, the bias is corrected after the limit, eps stands beside the uncorrected root, 1e-8 is
// added to |R_j| and to `last`, and the decay follows the step. Here |R_j| is at least 1e-30, and nothing is limited
// after a gradient of zeros, from where it could not grow again. With a constant factor their scale_front changes
// nothing else.
//
// P has the shape (r, d), d the shorter side, with one sign in each column and 0 elsewhere:
//
//   P[(k + o[k / B]) mod r, k] = 1 - 2 (word[k] >> 31)        o[b] = (word[b B] mod 2^31) mod r
//
// with B = r times the smallest power of two that makes it 64 or more (apollo_block). So |P u| is |u| on average, as by
// the authors' numbers of N(0, 1/r), but a projection costs one addition an element with any r, not r products:
// Charikar, Chen & Farach-Colton, "Finding frequent items in data streams", ICALP 2002; Dasgupta, Kumar & Sarlos, "A
// sparse Johnson-Lindenstrauss transform", STOC 2010. The offsets keep a period of u, the size of a convolution's
// kernel, from meeting that of P. P is never stored: the words are drawn in each step by Philox (ops/philox.h) from the
// seed, the number of the tensor (its place, unless `numbers` says another one) as stream, and (t-1) / update_gap as
// draw, so that it changes every update_gap steps. m and v stay as they are then. weights, masters, grads   as for
// optimizer_step, in C order. One of more than two axes is the matrix of its first
//                           axis by all others
// first, second             float32, written: m and v. Of a matrix r times its longer side, which makes r; any r >= 1
// norms                     float32, written: of a matrix one number, `last`, 0 before the first step. Empty where
//                           AdamW steps the tensor, whose moments have its size then
// Written tensors must not overlap one another or anything. Empty and 0-d tensors are fine, as AdamW's. inf or nan in a
// gradient reaches its column (row), tensor_wise the tensor, in all later steps, and ends the limit: check before, or
// skip. R is summed in float32, norms in float64 of float32 sums of some squares; all in a fixed order. Of
// settings.step, scale, step, hyper (b1, b2, eps, of AdamW too), lr, decay and ratio are numbers, and its array `skip`
// may be given, on the device.
#pragma once

#include "ops/matrix_step.h"

namespace boost_ext {

struct ApolloSettings : ProjectedSettings {
  bool tensor_wise = false;
  double limit = 1.01;  // >= 1; 0 is none
};

// `own` of the tensors are the norms.
void apollo_step(const Context& context, const ApolloSettings& settings, const ProjectedTensors& tensors);

// From tensor_wise, factor, limit and update_gap: what doors have.
ApolloSettings apollo_settings(const double* numbers, std::size_t count);

// B.
constexpr std::int64_t apollo_block(std::int64_t rank) { return rank < 64 ? apollo_block(2 * rank) : rank; }

BOOST_EXT_CPU_KERNEL(void, apollo_step, const Context&, const ApolloSettings&, const ProjectedStep&)
BOOST_EXT_CUDA_KERNEL(apollo_step, const Context&, const ApolloSettings&, const ProjectedStep&)

}  // namespace boost_ext
