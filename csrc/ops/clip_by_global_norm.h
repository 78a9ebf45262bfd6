// clip_by_global_norm: shorten a list of gradients, taken as one vector, to a greatest length.
//
//   norm = sqrt( sum over all elements g^2 ) / scale;   g <- g * clip_norm / max(norm, clip_norm)
//
// Source: Pascanu et al. 2013, On the difficulty of training recurrent neural networks, algorithm 1.
//
// grads      float32, float16 or bfloat16, any shapes; written only if the norm is finite and above clip_norm
// scale      finite and > 0: what the gradients are too large by, and stay so
// clip_norm  finite and > 0
// The norm is float64, the factor float32. A tensor that is listed more than once counts each time, and is written
// once. On a device `scale` may be there, too: nobody checks it, and whatever makes no norm of it leaves the gradients
// alone.
#pragma once

#include "ops/runtime.h"
#include "ops/schema.h"

namespace boost_ext {

inline constexpr Arg kClipByGlobalNormArgs[] = {arrays("grads", kFloats).any_order().written().repeatable(),
                                                real("clip_norm", Range::positive), number("scale", Range::positive),
                                                answer("out", kF64)};
inline constexpr Schema kClipByGlobalNorm{"clip_by_global_norm", kClipByGlobalNormArgs};

// out: one float64, the norm from before; inf or nan if some element is.
void clip_by_global_norm(const Context& context, const Views& grads, double clip_norm, const Number& scale,
                         const View& out);

// Reads only: check_gradients, and in the same read the norm of the gradients over scale and over own_scale, and what
// they have to be divided by so that they are clipped, and without `scale`.
inline constexpr Arg kCheckAndClipArgs[] = {real("scale", Range::positive),     real("clip_norm", Range::positive),
                                            real("own_scale", Range::positive), array("report", kF64).written(),
                                            array("norm", kF32, 1).written(),   array("divisor", kF32, 1).written(),
                                            arrays("grads", kFloats),           answer("out", kF32)};
inline constexpr Schema kCheckAndClip{"clip_by_global_norm", kCheckAndClipArgs, Devices::cpu};
void check_and_clip(const Context& context, double scale, double clip_norm, double own_scale, const View& report,
                    const View& norm, const View& divisor, const Views& grads, const View& found);

// distinct: the tensors of grads, those that are listed again once.
BOOST_EXT_CUDA_KERNEL(clip_by_global_norm, const Context&, Tensors grads, Tensors distinct, double clip_norm,
                      const Number& scale, double* norm)

}  // namespace boost_ext
