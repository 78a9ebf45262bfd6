// centralize: gradient centralization, in place or into other tensors.
//
//   out[o, ...] <- g[o, ...] - mean over all axes but the first of g[o, ...]
//
// Yong et al., "Gradient centralization: a new optimization technique for deep neural networks", ECCV 2020, eq. 1, for
// weights stored with the output channel first (Dense and Conv2d).
// grads  float32, float16 or bfloat16. Tensors with fewer than two axes (biases, scales) stay what they are.
// out    of the sizes and dtypes of grads, written; out[i] may be grads[i], and nothing else may overlap it. Grads may
//        share memory with each other then. Without out the grads are written; one listed more than once is one tensor.
// The mean is a float64 sum in a fixed order. inf and nan make their own row nan and no other.
#pragma once

#include "ops/runtime.h"
#include "ops/schema.h"

namespace boost_ext {

inline constexpr Arg kCentralizeInPlaceArgs[] = {arrays("grads", kFloats).written().repeatable()};
inline constexpr Arg kCentralizeArgs[] = {arrays("grads", kFloats).twin(),
                                          arrays("out", kFloats).like("grads").dtypes_of("grads").written().twin()};
inline constexpr Schema kCentralizeInPlace{"centralize", kCentralizeInPlaceArgs, Devices::cpu_and_cuda,
                                           "centralize_in_place"};
inline constexpr Schema kCentralize{"centralize", kCentralizeArgs};

void centralize_in_place(const Context& context, const Views& grads);
void centralize(const Context& context, const Views& grads, const Views& out);

BOOST_EXT_CPU_KERNEL(void, centralize, const Context&, Tensors grads, Tensors out)

BOOST_EXT_CUDA_KERNEL(centralize, const Context&, Tensors grads, Tensors out)

}  // namespace boost_ext
