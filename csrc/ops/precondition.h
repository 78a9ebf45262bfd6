// precondition: gradients times their Kronecker-factored inverse curvature, all tensors of an optimizer in one call.
//
//   out[i] <- inv_scale * L_i g_i R_i
//
// The natural gradient of a layer whose Fisher matrix is a Kronecker product: Martens & Grosse, ICML 2015, section 2;
// Chen et al., "THOR", AAAI 2021, equation 6. Dense and convolution: L = G^-1, R = A^-1; embedding: L = A^-1, R = G^-1.
// grads        float32, float16 or bfloat16; g_i as a matrix: its first axis, by all others
// left, right  float32. (blocks, b, b): the matrix with these blocks on its diagonal; what lies beyond the gradient's
//              rows or columns is not read. (d,): a diagonal matrix. Both empty: no curvature, out = inv_scale * g.
// out          float32, of the sizes of grads, written; nothing may overlap it
// Sums are float32, of at most 128 products each, and then of these, in a fixed order. A product is rounded once, with
// its sum; so the bits are the same on every instruction set, but x86 without FMA emulates this, and is slow.
// On CUDA large gradients with large blocks are multiplied by cuBLAS, where there is one (docs/cuda.md): in float32, in
// an order of its own, which depends on its version and on the card.
#pragma once

#include "ops/runtime.h"
#include "ops/schema.h"

namespace boost_ext {

inline constexpr Arg kPreconditionArgs[] = {arrays("grads", kFloats), arrays("left", 0).optional(),
                                            arrays("right", 0).optional(), real("inv_scale"),
                                            arrays("out", kF32).like("grads").written()};
inline constexpr Schema kPrecondition{"precondition", kPreconditionArgs};

void precondition(const Context& context, const Views& grads, const Views& left, const Views& right, double inv_scale,
                  const Views& out);

// New gradients of layers: G^-1 g A^-1 times inv_scale, and inv_scale * g of the others. layout: int32, for each
// gradient 0 if it belongs to no layer, 1 if it is that of the next Dense or convolution, 2 that of the next embedding.
void precondition_layers(const Context& context, double inv_scale, const Views& A, const Views& G, const View& layout,
                         const Views& grads, const Views& out);

struct Factor {
  const float* data;
  std::int64_t block;  // extent of a block; 0 for a diagonal
};

BOOST_EXT_CPU_KERNEL(void, precondition, const Context&, float inv_scale, Tensors grads, const Factor* left,
                     const Factor* right, Tensors out)

BOOST_EXT_CUDA_KERNEL(precondition, const Context&, float inv_scale, Tensors grads, const Factor* left,
                      const Factor* right, Tensors out)

}  // namespace boost_ext
