// __half: two bytes, converted as CUDA does, to the nearest and ties to even. Every NaN becomes 0x7fff, and the float
// 0x7fffffff on the way back, as the device gives them.
#pragma once

#include "cuda_runtime.h"

struct alignas(2) __half {
  unsigned short bits;
};
using half = __half;
static_assert(sizeof(__half) == 2);

inline unsigned short __half_as_ushort(__half h) { return h.bits; }
inline __half __ushort_as_half(unsigned short bits) { return {bits}; }

inline __half __float2half_rn(float value) {
  const unsigned bits = __float_as_uint(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return {0x7fff};
  if (magnitude >= 0x477ff000) return {static_cast<unsigned short>(sign | 0x7c00)};  // 65520 and more: infinity
  unsigned half = 0;
  if (magnitude < 0x38800000) {
    // Below the normal ones, 2^-14: adding 0.5 leaves multiples of 2^-24 in the mantissa, rounded.
    half = __float_as_uint(__uint_as_float(magnitude) + 0.5F) - 0x3f000000;
  } else {
    half = (magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13;
  }
  return {static_cast<unsigned short>(sign | half)};
}
inline __half __float2half(float value) { return __float2half_rn(value); }

inline float __half2float(__half h) {
  const unsigned sign = (h.bits & 0x8000U) << 16, magnitude = h.bits & 0x7fffU;
  if (magnitude > 0x7c00) return __uint_as_float(0x7fffffff);
  if (magnitude == 0x7c00) return __uint_as_float(sign | 0x7f800000);
  // Subnormal numbers are exact multiples of 2^-24.
  if (magnitude < 0x400) return __uint_as_float(sign | __float_as_uint(static_cast<float>(magnitude) * 0x1p-24F));
  return __uint_as_float(sign | ((magnitude << 13) + 0x38000000));
}
