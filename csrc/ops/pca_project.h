// pca_project: the coordinates of a gradient in a k-dimensional subspace.
//
//   out[r] = sum_i P[r, i] * g[i],   r = 0 .. k-1,   g = the tensors of `grads`, flattened and joined in list order
//
// The first formula of dimension-reduced training (grad_k = pca_mat . grad).
// P      (k, n) float32, float16, bfloat16, or int8 codes; k >= 1, n = the number of elements of all grads
// scale  with an int8 P only: (k, ceil(n / 256)) float32, and P[r, i] stands for scale[r, i / 256] * P[r, i]
//        (block-wise quantization: Dettmers et al., ICLR 2022; a P of few bits: Li et al., "Trainable Weight
//        Averaging")
// grads  any shapes, each float32, float16 or bfloat16
// out    (k,) float32, written; must not overlap P, scale or grads
// Sums: blocks of 4096 elements in 64 float32 lanes, the blocks' sums in float64 in their order. On CUDA the lanes are
// 128, of single precision too, and add up in float64 in a fixed order: other bits than the CPU's, but the same on
// every card and however the arrays are aligned. n = 0 gives zeros; inf and nan propagate.
// Of codes, what shares a scale (on CUDA of 16 columns beside one another) is summed up in 16 lanes, on CUDA in two by
// fused multiply-adds, before it is multiplied with it, so that an element of a gradient beyond 2^116 may overflow.
#pragma once

#include "ops/runtime.h"
#include "ops/schema.h"

namespace boost_ext {

constexpr std::int64_t kProjectionBlock = 256;  // columns of a row of codes that share a scale

inline constexpr DTypes kProjections = kFloats | only(DType::i8);
inline constexpr Arg kPcaProjectArgs[] = {array("P", kProjections), arrays("grads", kFloats), array("out", kF32).made(),
                                          array("scale", 0).optional()};
inline constexpr Schema kPcaProject{"pca_project", kPcaProjectArgs, Devices::all};

// scale: none of a P that is no codes.
void pca_project(const Context& context, const View& P, const Views& grads, const View& out, const View& scale = {});

BOOST_EXT_CPU_KERNEL(void, pca_project, const Context&, const View& P, const float* scale, Tensors grads,
                     std::int64_t n, float* out)

BOOST_EXT_ASCEND_KERNEL(pca_project, const Context&, const View& P, Tensors grads, std::int64_t n, const View& out)
BOOST_EXT_CUDA_KERNEL(pca_project, const Context&, const View& P, const float* scale, Tensors grads, std::int64_t n,
                      float* out)

// Shared with pca_back_project: P is a (k, n) matrix, with scales where it is of codes. Returns them.
const float* require_projection(const char* op, const View& P, const View& scale, std::int64_t n, Device device);

}  // namespace boost_ext
