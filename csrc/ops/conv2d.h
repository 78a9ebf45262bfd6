// conv2d and its gradients: directly where few input channels meet in a group, as in depthwise convolutions and those
// of images; by tiles for 3 x 3 and stride 1 with many (in_tiles()); as products of matrices for all others
// (in_products()).
//
//   y[n, o, i, j]  <- sum over c, a, b of w[o, c, a, b] x[n, g c_g + c, i sh + a dh - top, j sw + b dw - left]
//
// where o is an output of group g of c_g channels, and x is 0 outside of the image. dx and dw are the gradients of the
// sum of dy y. None makes a matrix of patches.
// x, dx    float32, n images of c channels, h by w
// w, dw    float32, (outputs, c / groups, kh, kw)
// y, dy    float32, n images of `outputs` channels, oh by ow
// patches  14 numbers, those of Patches in their order
// y, dx and dw are written. Sums are float32, but those of dw are float64 beyond 64 terms, of tiles beyond 128; those
// of products are float32 sums of 128 each, added in float32. Their order is fixed. What is outside of an image is a
// factor, too: inf and nan of w or dy make more of dx and dw nan than the formula does. By tiles, inf and nan make nan
// of all that the tiles which see them give, and rounding errors are relative to the sums of absolute values of all
// that a tile sees: a few times those of a direct sum. Products, and those of transformed tiles, may round their
// factors to bfloat16 first (set_float32_matmul_precision()).
#pragma once

#include "ops/patches.h"
#include "ops/runtime.h"
#include "ops/schema.h"

namespace boost_ext {

inline constexpr Arg kConv2dArgs[] = {array("x", kF32), array("w", kF32), integers("patches"), integer("groups"),
                                      array("y", kF32).written()};
inline constexpr Schema kConv2d{"conv2d", kConv2dArgs, Devices::cpu};

inline constexpr Arg kConv2dInputGradientArgs[] = {array("dy", kF32), array("w", kF32), integers("patches"),
                                                   integer("groups"), array("dx", kF32).written()};
inline constexpr Schema kConv2dInputGradient{"conv2d_input_gradient", kConv2dInputGradientArgs, Devices::cpu};

inline constexpr Arg kConv2dWeightGradientArgs[] = {array("dy", kF32), array("x", kF32), integers("patches"),
                                                    integer("groups"), array("dw", kF32).written()};
inline constexpr Schema kConv2dWeightGradient{"conv2d_weight_gradient", kConv2dWeightGradientArgs, Devices::cpu};

void conv2d(const Context& context, const View& x, const View& w, const std::vector<std::int32_t>& patches,
            std::int64_t groups, const View& y);
void conv2d_input_gradient(const Context& context, const View& dy, const View& w,
                           const std::vector<std::int32_t>& patches, std::int64_t groups, const View& dx);
void conv2d_weight_gradient(const Context& context, const View& dy, const View& x,
                            const std::vector<std::int32_t>& patches, std::int64_t groups, const View& dw);

struct Convolution {
  Patches p;
  std::int64_t groups, outputs;
  std::int64_t images() const { return p.n * p.c * p.h * p.w; }  // elements of x, of w and of y
  std::int64_t weights() const { return outputs * (p.size() / groups); }
  std::int64_t results() const { return p.rows() * outputs; }

  // Of so many channels and outputs that tiles of transformed images are faster (cpu/winograd.h); or of the rest,
  // that products of matrices are.
  bool in_tiles() const;
  bool in_products() const;
};

BOOST_EXT_CPU_KERNEL(void, conv2d, const Context&, const float* x, const float* w, const Convolution& of, float* y)
BOOST_EXT_CPU_KERNEL(void, conv2d_input_gradient, const Context&, const float* dy, const float* w,
                     const Convolution& of, float* dx)
BOOST_EXT_CPU_KERNEL(void, conv2d_weight_gradient, const Context&, const float* dy, const float* x,
                     const Convolution& of, float* dw)

}  // namespace boost_ext
