// covariance: second moments of a layer's rows, in blocks along the diagonal.
//
//   out <- factor * sum over rows r of p_r p_r^T
//
// The factors A and G of Kronecker-factored curvature: Martens & Grosse, "Optimizing neural networks with
// Kronecker-factored approximate curvature", ICML 2015, section 2; for convolutions Grosse & Martens, "A
// Kronecker-factored approximate Fisher matrix for convolution layers", ICML 2016, section 3; blocks: Chen et al.,
// "THOR", AAAI 2021, section 3.2.
// x       float32, float16 or bfloat16: n images of c channels, h by w; a row is the patch of c * kh * kw elements that
//         one output position sees (zeros beyond the edge), rows = n * oh * ow. A matrix (rows, d) is n = rows images
//         of d channels, one by one, with a kernel of one element. int32: rows of one 1, at the index given; an index
//         outside of out counts for nothing.
// out     float64, written. (blocks, b, b): rows and columns i * b up to (i + 1) * b of the matrix, zeros beyond its
//         last; blocks = ceil(d / b). For int32 (d,), the diagonal, which is all there is.
// factor  a number; with 0 rows out is 0
// Products are summed in float32 over at most 128 rows, each rounded once, with its sum; these sums in float64, all in
// a fixed order. Elements may be anywhere in float32's range. inf and nan spread to the rows and columns of their
// features.
#pragma once

#include "ops/patches.h"
#include "ops/runtime.h"
#include "ops/schema.h"

namespace boost_ext {

inline constexpr Arg kCovarianceArgs[] = {array("x", kFloats | kI32), integers("patches"), real("factor"),
                                          array("out", kF64).written()};
inline constexpr Schema kCovariance{"covariance", kCovarianceArgs};

// numbers: those of Patches in their order; none for indices.
void covariance(const Context& context, const View& x, const std::vector<std::int64_t>& numbers, double factor,
                const View& out);
void covariance(const Context& context, const View& x, const Patches& patches, double factor, const View& out);
void covariance(const Context& context, const View& indices, double factor, const View& out);

// Curvature is renewed in the steps whose number is a multiple of the frequency.
bool is_due(std::int64_t step, std::int64_t frequency);

// A layer of a network.
struct Layer {
  std::int32_t kind;  // 0 Dense, 1 convolution, 2 embedding
  std::int32_t frequency, outputs;
  std::int32_t channels, kh, kw, sh, sw, dh, dw;  // of a convolution: input channels, kernel, stride, dilation
  std::int32_t same, above, below, left, right;   // whether it pads as "same"; if not, its padding
};

// The factors of a layer after `step` steps, if they are due; otherwise nothing happens.
//   x      the layer's input: (rows, d); (n * c * h, w) of a convolution; int32 (rows,) of an embedding
//   dout   the gradient of its output: (rows, o), or (n, o, oh, ow); times `batch` it is that of single samples
//   A, G   written, as out above
// With T output positions of a convolution (T = 1 for the others): A = sqrt(T) * mean of a a^T and G = sqrt(T) *
// batch^2 * mean of dout dout^T over samples and positions; A of an embedding: how often each row was used, by batch.
// `layer`: the numbers of a Layer, in their order.
inline constexpr Arg kLayerCovariancesArgs[] = {integer("step"),
                                                integers("layer"),
                                                real("batch"),
                                                array("x", kFloats | kI32),
                                                array("dout", kFloats),
                                                array("A", kF64).written(),
                                                array("G", kF64).written()};
inline constexpr Schema kLayerCovariances{"covariance", kLayerCovariancesArgs, Devices::cpu};
void layer_covariances(const Context& context, std::int64_t step, const std::vector<std::int32_t>& layer, double batch,
                       const View& x, const View& dout, const View& A, const View& G);

BOOST_EXT_CPU_KERNEL(void, covariance, const Context&, const View& x, const Patches& patches, double factor,
                     std::int64_t block, const View& out)

BOOST_EXT_CUDA_KERNEL(covariance, const Context&, const View& x, const Patches& patches, double factor,
                      std::int64_t block, const View& out)
BOOST_EXT_CUDA_KERNEL(count_indices, const Context&, const View& indices, double factor, const View& out)

}  // namespace boost_ext
