// global_norm: the Euclidean norm of all tensors of a list together.
//
//   sqrt( sum over all elements x^2 )
//
// tensors  float32, float16 or bfloat16, any shapes; only read
// Sums of squares in float64 (a float32 square cannot overflow there), blocks of 4096 in order. A backend may first add
// four squares of float16 or bfloat16 in float32, if none of them overflows there or vanishes: they are exact, so at
// most three roundings are added, 2^-23 of the norm. Some element inf or nan <=> the result is inf or nan. No elements:
// 0.
#pragma once

#include "ops/runtime.h"
#include "ops/schema.h"

namespace boost_ext {

inline constexpr Arg kGlobalNormArgs[] = {arrays("tensors", kFloats).any_order(), answer("out", kF64)};
inline constexpr Schema kGlobalNorm{"global_norm", kGlobalNormArgs};

void global_norm(const Context& context, const Views& tensors, const View& out);  // out: one float64
// For ops that have checked their arguments: on the CPU.
double norm_of(const Context& context, const Views& tensors);

// squares[i] = the sum of the squares of tensor i.
BOOST_EXT_CPU_KERNEL(void, sums_of_squares, const Context&, Tensors tensors, double* squares)

BOOST_EXT_CUDA_KERNEL(sums_of_squares, const Context&, Tensors tensors, double* squares)
BOOST_EXT_CUDA_KERNEL(global_norm, const Context&, Tensors tensors, double* norm)

}  // namespace boost_ext
