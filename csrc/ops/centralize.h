// centralize: gradient centralization, in place.
//
//   g[o, ...] <- g[o, ...] - mean over all axes but the first of g[o, ...]
//
// Yong et al., "Gradient centralization: a new optimization technique for deep neural networks", ECCV 2020, eq. 1, for
// weights stored with the output channel first (Dense and Conv2d).
// grads  float32, float16 or bfloat16, written; tensors with fewer than two axes (biases, scales) are left as they are;
//        a tensor listed more than once is one tensor
// The mean is a float64 sum in a fixed order. inf and nan make their own row nan and no other.
#pragma once

#include "ops/runtime.h"

namespace boost_ext {

void centralize(const Context& context, const Views& grads);

BOOST_EXT_CPU_KERNEL(void, centralize, const Context&, Tensors grads)

}  // namespace boost_ext
