// adasum: the adaptive sum of two gradients, tensor by tensor.
//
//   out = (1 - <a,b> / (2 |a|^2)) a + (1 - <a,b> / (2 |b|^2)) b
//
// Maleki et al., "Scaling distributed training with adaptive summation", MLSys 2021, eq. 3. Orthogonal gradients add,
// parallel ones average. One pair of coefficients a tensor.
// a, b   lists of tensors of the same sizes and dtypes; float32, float16 or bfloat16
// dots   (T, 3) float64: <a,b>, |a|^2, |b|^2 of each tensor
// out    tensors like a; may be a or b themselves, tensor by tensor
// The coefficients are float32: tensors whose norms differ by a factor of 1e19 may overflow.
// A vector of norm zero has coefficient 1, so that the sum is the other vector. inf and nan propagate.
// Sums: float64 lanes, blocks of 4096 in order; four products of half precision at a time may be added in float32, as
// in global_norm.h. The two halves are what a run over ranks needs: dots of parts, summed over the ranks that hold the
// parts, then combine.
#pragma once

#include "ops/runtime.h"
#include "ops/schema.h"

namespace boost_ext {

inline constexpr Arg kAdasumA = arrays("a", kFloats).any_order();
inline constexpr Arg kAdasumB = arrays("b", kFloats).any_order().like("a").dtypes_of("a");
inline constexpr Arg kAdasumOut = arrays("out", kFloats).any_order().like("a").dtypes_of("a").made_alike().twin();
inline constexpr Arg kAdasumDotsArgs[] = {kAdasumA, kAdasumB, array("out", kF64).made(3)};
inline constexpr Arg kAdasumCombineArgs[] = {kAdasumA.twin(), kAdasumB.twin(), array("dots", kF64), kAdasumOut};
inline constexpr Arg kAdasumPairArgs[] = {kAdasumA.twin(), kAdasumB.twin(), kAdasumOut};
inline constexpr Schema kAdasumDots{"adasum_dots", kAdasumDotsArgs, Devices::all};
inline constexpr Schema kAdasumCombine{"adasum_combine", kAdasumCombineArgs, Devices::all};
inline constexpr Schema kAdasumPair{"adasum_pair", kAdasumPairArgs, Devices::all};

void adasum_dots(const Context& context, const Views& a, const Views& b, const View& out);
void adasum_combine(const Context& context, const Views& a, const Views& b, const View& dots, const Views& out);
void adasum_pair(const Context& context, const Views& a, const Views& b, const Views& out);

BOOST_EXT_CPU_KERNEL(void, adasum_dots, const Context&, Tensors a, Tensors b, double* dots)
BOOST_EXT_CPU_KERNEL(void, adasum_combine, const Context&, Tensors a, Tensors b, const double* dots, Tensors out)

BOOST_EXT_CUDA_KERNEL(adasum_dots, const Context&, Tensors a, Tensors b, double* dots)
BOOST_EXT_CUDA_KERNEL(adasum_combine, const Context&, Tensors a, Tensors b, const double* dots, Tensors out)
BOOST_EXT_ASCEND_KERNEL(adasum_pair, const Context&, Tensors a, Tensors b, Tensors out)
BOOST_EXT_CUDA_KERNEL(adasum_pair, const Context&, Tensors a, Tensors b, Tensors out)

}  // namespace boost_ext
