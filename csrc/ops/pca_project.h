// pca_project: the coordinates of a gradient in a k-dimensional subspace.
//
//   out[r] = sum_i P[r, i] * g[i],   r = 0 .. k-1,   g = the tensors of `grads`, flattened and joined in list order
//
// The first formula of dimension-reduced training (grad_k = pca_mat . grad).
// P      (k, n) float32, float16 or bfloat16; k >= 1, n = the number of elements of all grads
// grads  any shapes, each float32, float16 or bfloat16
// out    (k,) float32, written; must not overlap P or grads
// Sums: blocks of 4096 elements in 64 float32 lanes, the blocks' sums in float64 in their order. On CUDA the lanes are
// 128, of single precision too, and add up in float64 in a fixed order: other bits than the CPU's, but the same on
// every card and however the arrays are aligned. n = 0 gives zeros; inf and nan propagate.
#pragma once

#include "ops/runtime.h"

namespace boost_ext {

void pca_project(const Context& context, const View& P, const Views& grads, const View& out);

BOOST_EXT_CPU_KERNEL(void, pca_project, const Context&, const View& P, Tensors grads, std::int64_t n, float* out)

BOOST_EXT_ASCEND_KERNEL(pca_project, const Context&, const View& P, Tensors grads, std::int64_t n, const View& out)
BOOST_EXT_CUDA_KERNEL(pca_project, const Context&, const View& P, Tensors grads, std::int64_t n, float* out)

// Shared with pca_back_project: P is a floating (k, n) matrix.
void require_projection(const char* op, const View& P, std::int64_t n);

}  // namespace boost_ext
