// __nv_bfloat16: two bytes, converted as CUDA does, to the nearest and ties to even. Every NaN becomes 0x7fff, as the
// device gives it; the way back keeps all bits.
#pragma once

#include "cuda_runtime.h"

struct alignas(2) __nv_bfloat16 {
  unsigned short bits;
};
using nv_bfloat16 = __nv_bfloat16;
static_assert(sizeof(__nv_bfloat16) == 2);

inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 h) { return h.bits; }
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) { return {bits}; }

inline __nv_bfloat16 __float2bfloat16_rn(float value) {
  const unsigned bits = __float_as_uint(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return {0x7fff};
  return {static_cast<unsigned short>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}
inline __nv_bfloat16 __float2bfloat16(float value) { return __float2bfloat16_rn(value); }

inline float __bfloat162float(__nv_bfloat16 h) { return __uint_as_float(static_cast<unsigned>(h.bits) << 16); }
