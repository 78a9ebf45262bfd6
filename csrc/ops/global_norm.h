// global_norm: the Euclidean norm of all tensors of a list together.
//
//   sqrt( sum over all elements x^2 )
//
// tensors  float32, float16 or bfloat16, any shapes; only read
// Sums of squares in float64 (a float32 square cannot overflow there), blocks of 4096 in order. Some element inf or nan
// <=> the result is inf or nan. No elements: 0.
#pragma once

#include "ops/runtime.h"

namespace boost_ext {

double global_norm(const Context& context, const Views& tensors);

BOOST_EXT_CPU_KERNEL(double, sum_of_squares, const Context&, Tensors tensors)

}  // namespace boost_ext
