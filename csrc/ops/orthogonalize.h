// orthogonalize: matrices whose singular values are brought near 1, all of a network in one call.
//
//   X <- M / (|M| + eps), transposed if it has more rows than columns; |M| is the Frobenius norm
//   `steps` times:  A = X X^T,  X <- a X + (b A + c A^2) X,  with a = 3.4445, b = -4.7750, c = 2.0315
//   out <- X, transposed back
//
// Newton-Schulz iteration with the quintic polynomial of Jordan et al., "Muon: an optimizer for hidden layers in neural
// networks", 2024. After five steps, singular values from about 1e-2 of the norm up lie between 0.68 and 1.13.
// matrices  float32, float16 or bfloat16; each as a matrix: its first axis, by all others
// out       float32, of the sizes of matrices, written; out[i] may be matrices[i], and nothing else may overlap it
// steps     >= 0
// eps       >= 0; a matrix of zeros gives zeros if it is > 0
// With at least twice as many columns as rows (after the transposition) the steps run on A, of which X is a polynomial
// times the first X: P = a I + b A + c A^2, Q <- P Q, A <- P A P, and out = Q X. That is the same but for rounding.
// The norm is summed in float64. Products are summed in float32, at most 128 at a time and then these sums, in a fixed
// order, each rounded once with its sum. inf and nan make the whole result of their matrix nan.
// On a CPU products may round their factors to bfloat16 first (set_float32_matmul_precision()); all that is kept is
// float32. Less than six times as many columns as rows then begin again with A after three steps, since what is rounded
// off A grows; with more columns, where A is cheap, it stays float32.
// On CUDA large matrices are multiplied by cuBLAS, where there is one (docs/cuda.md): in float32, in its own order. The
// same call gives the same bits; another version, card or list of matrices may give others.
#pragma once

#include "ops/runtime.h"
#include "ops/schema.h"

namespace boost_ext {

inline constexpr Arg kOrthogonalizeArgs[] = {arrays("matrices", kFloats).twin(),
                                             arrays("out", kF32).like("matrices").written().twin(), integer("steps"),
                                             real("eps", Range::non_negative)};
inline constexpr Schema kOrthogonalize{"orthogonalize", kOrthogonalizeArgs};

void orthogonalize(const Context& context, const Views& matrices, const Views& out, std::int64_t steps, double eps);

// The polynomial a x + b x^3 + c x^5.
struct NewtonSchulz {
  static constexpr float a = 3.4445F, b = -4.7750F, c = 2.0315F;
};

std::int64_t least_side(const View& v);

// How CPU threads share a list of matrices. `order` gets the numbers of all that are not empty: first those on which
// all threads work, one after the other, then those of one thread each, the largest first.
struct MatrixShares {
  std::int64_t together, count, work;  // of the first ones; of all; elements touched in the others
};
MatrixShares share_matrices(int threads, Tensors matrices, std::int64_t steps, std::int64_t* order);

BOOST_EXT_CPU_KERNEL(void, orthogonalize, const Context&, Tensors matrices, Tensors out, std::int64_t steps, double eps)

// allow_tf32: factors of cuBLAS's products may be rounded to TF32.
BOOST_EXT_CUDA_KERNEL(orthogonalize, const Context&, Tensors matrices, Tensors out, std::int64_t steps, double eps,
                      bool allow_tf32)

}  // namespace boost_ext
