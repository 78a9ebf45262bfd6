// The lanes that ops/optimizer_rules.h is written in, on CUDA: a thread has one. Compiled without contraction, with
// IEEE division and roots, so that a step leaves the bits that it leaves on the CPU; but for powf, whose last bits are
// CUDA's own.
#pragma once

#include "common.cuh"

#define BOOST_EXT_BACKEND boost_ext::cuda
#define BOOST_EXT_INLINE __host__ __device__ __forceinline__

namespace boost_ext::cuda {

using F = float;

BOOST_EXT_INLINE F all(float x) { return x; }
BOOST_EXT_INLINE F sqrt(F x) { return ::sqrtf(x); }
BOOST_EXT_INLINE F abs(F x) { return ::fabsf(x); }
BOOST_EXT_INLINE F copy_sign(F magnitude, F sign) { return ::copysignf(magnitude, sign); }
BOOST_EXT_INLINE F where_less(F x, F y, F a, F b) { return x < y ? a : b; }
BOOST_EXT_INLINE F where_equal(F x, F y, F a, F b) { return x == y ? a : b; }
BOOST_EXT_INLINE F max(F a, F b) { return where_less(b, a, a, b); }
BOOST_EXT_INLINE F raise(F x, float exponent) { return ::powf(x, exponent); }
BOOST_EXT_INLINE double square_root(double x) { return ::sqrt(x); }

}  // namespace boost_ext::cuda
