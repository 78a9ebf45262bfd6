// Device functions that compute: bits of numbers, loads and stores with cache hints, min and max, and arithmetic of a
// stated rounding, which is what the host's operators do with -ffp-contract=off. sqrtf, isnan and the like are the
// host's own; where CUDA's are not correctly rounded (powf, expf, ...) the last bits differ.
#pragma once

#include <math.h>  // NOLINT: the unqualified names

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

namespace boost_ext::cuda::emulator {

template <class To, class From> To bits_as(From value) {
  static_assert(sizeof(To) == sizeof(From));
  To result;
  std::memcpy(&result, &value, sizeof result);
  return result;
}

// The device reads and writes a vector only at a multiple of its size.
template <class T> T* aligned(T* address) {
  if (reinterpret_cast<std::uintptr_t>(address) % alignof(T) != 0) throw std::logic_error("misaligned address");
  return address;
}

}  // namespace boost_ext::cuda::emulator

#define BOOST_EXT_EMULATED_BITS(name, From, To) \
  inline To name(From value) { return boost_ext::cuda::emulator::bits_as<To>(value); }
BOOST_EXT_EMULATED_BITS(__float_as_uint, float, unsigned)
BOOST_EXT_EMULATED_BITS(__uint_as_float, unsigned, float)
BOOST_EXT_EMULATED_BITS(__float_as_int, float, int)
BOOST_EXT_EMULATED_BITS(__int_as_float, int, float)
BOOST_EXT_EMULATED_BITS(__double_as_longlong, double, long long)
BOOST_EXT_EMULATED_BITS(__longlong_as_double, long long, double)
#undef BOOST_EXT_EMULATED_BITS

#define BOOST_EXT_EMULATED_LOAD(name) \
  template <class T> T name(const T* address) { return *boost_ext::cuda::emulator::aligned(address); }
BOOST_EXT_EMULATED_LOAD(__ldg)
BOOST_EXT_EMULATED_LOAD(__ldca)
BOOST_EXT_EMULATED_LOAD(__ldcg)
BOOST_EXT_EMULATED_LOAD(__ldcs)
BOOST_EXT_EMULATED_LOAD(__ldlu)
BOOST_EXT_EMULATED_LOAD(__ldcv)
#undef BOOST_EXT_EMULATED_LOAD
#define BOOST_EXT_EMULATED_STORE(name) \
  template <class T> void name(T* address, T value) { *boost_ext::cuda::emulator::aligned(address) = value; }
BOOST_EXT_EMULATED_STORE(__stwb)
BOOST_EXT_EMULATED_STORE(__stcg)
BOOST_EXT_EMULATED_STORE(__stcs)
BOOST_EXT_EMULATED_STORE(__stwt)
#undef BOOST_EXT_EMULATED_STORE

// Byte i of the result is byte `selector >> 4 i & 7` of the eight of b and a.
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  const std::uint64_t both = std::uint64_t{b} << 32 | a;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    result |= static_cast<unsigned>(both >> (8 * (selector >> (4 * i) & 7)) & 0xff) << (8 * i);
  }
  return result;
}

inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
inline int __clz(int v) { return v == 0 ? 32 : __builtin_clz(static_cast<unsigned>(v)); }
inline int __clzll(long long v) { return v == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(v)); }
inline int __ffs(int v) { return __builtin_ffs(v); }
inline int __ffsll(long long v) { return __builtin_ffsll(v); }

// CUDA's overloads, those of mixed signs included; of floating-point numbers, a NaN loses.
#define BOOST_EXT_EMULATED_MIN_MAX(R, A, B)                                                                           \
  constexpr R min(A a, B b) { return static_cast<R>(a) < static_cast<R>(b) ? static_cast<R>(a) : static_cast<R>(b); } \
  constexpr R max(A a, B b) { return static_cast<R>(a) > static_cast<R>(b) ? static_cast<R>(a) : static_cast<R>(b); }
BOOST_EXT_EMULATED_MIN_MAX(int, int, int)
BOOST_EXT_EMULATED_MIN_MAX(unsigned, unsigned, unsigned)
BOOST_EXT_EMULATED_MIN_MAX(unsigned, int, unsigned)
BOOST_EXT_EMULATED_MIN_MAX(unsigned, unsigned, int)
BOOST_EXT_EMULATED_MIN_MAX(long, long, long)
BOOST_EXT_EMULATED_MIN_MAX(unsigned long, unsigned long, unsigned long)
BOOST_EXT_EMULATED_MIN_MAX(unsigned long, long, unsigned long)
BOOST_EXT_EMULATED_MIN_MAX(unsigned long, unsigned long, long)
BOOST_EXT_EMULATED_MIN_MAX(long long, long long, long long)
BOOST_EXT_EMULATED_MIN_MAX(unsigned long long, unsigned long long, unsigned long long)
BOOST_EXT_EMULATED_MIN_MAX(unsigned long long, long long, unsigned long long)
BOOST_EXT_EMULATED_MIN_MAX(unsigned long long, unsigned long long, long long)
#undef BOOST_EXT_EMULATED_MIN_MAX
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }
inline double min(float a, double b) { return fmin(a, b); }
inline double max(float a, double b) { return fmax(a, b); }
inline double min(double a, float b) { return fmin(a, b); }
inline double max(double a, float b) { return fmax(a, b); }

inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return sqrtf(a); }
inline float __frcp_rn(float a) { return 1 / a; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
// Towards zero: the nearest, and what was lost says on which side of the sum it lies. No finite sum may overflow.
inline float __fadd_rz(float a, float b) {
  const float sum = a + b, of_b = sum - a;
  const float lost = (a - (sum - of_b)) + (b - of_b);
  return (sum > 0 && lost < 0) || (sum < 0 && lost > 0) ? nextafterf(sum, 0) : sum;
}
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dsub_rn(double a, double b) { return a - b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline double __dsqrt_rn(double a) { return sqrt(a); }
inline double __drcp_rn(double a) { return 1 / a; }
inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
inline float __double2float_rn(double a) { return static_cast<float>(a); }
inline float __int2float_rn(int a) { return static_cast<float>(a); }
inline float __uint2float_rn(unsigned a) { return static_cast<float>(a); }
