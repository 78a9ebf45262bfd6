// Sixteen float32 lanes on every instruction set: one AVX-512 register, two of AVX2, four of SSE2 or NEON. A kernel is
// written once on F (16 float32) and D (16 float64); since the lanes, their order and the rounding of each operation
// are the same everywhere, so are the bits.
// This file is compiled once an instruction set. Nothing in here or in the kernels may become an inline function that
// the linker shares between them: everything lives in the namespace BOOST_EXT_ISA, and no standard templates are used.
#pragma once

#include <cstdint>
#include <cstring>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "ops/tensor.h"

#define BOOST_EXT_BACKEND boost_ext::cpu::BOOST_EXT_ISA  // for what ops/ has for all backends
// Without NDEBUG it is not forced: under the address sanitizer a kernel compiles in a fifth of the time.
#if defined(NDEBUG)
#define BOOST_EXT_INLINE inline __attribute__((always_inline))
#define BOOST_EXT_INLINE_LAMBDA __attribute__((always_inline))
#else
#define BOOST_EXT_INLINE inline
#define BOOST_EXT_INLINE_LAMBDA
#endif

namespace boost_ext::cpu::BOOST_EXT_ISA {

constexpr int kLanes = 16;
#if defined(__AVX512F__)
constexpr int kWidth = 16;
#elif defined(__AVX2__)
constexpr int kWidth = 8;
#else
constexpr int kWidth = 4;
#endif
constexpr int kParts = kLanes / kWidth;

using Vf __attribute__((vector_size(kWidth * 4))) = float;
using Vi __attribute__((vector_size(kWidth * 4))) = std::int32_t;
using Vu __attribute__((vector_size(kWidth * 4))) = std::uint32_t;
using Vd __attribute__((vector_size(kWidth * 4))) = double;         // kWidth / 2 lanes
using Vh __attribute__((vector_size(kWidth * 2))) = std::uint16_t;  // kWidth lanes
using Vs __attribute__((vector_size(kWidth * 4))) = std::int16_t;   // 2 * kWidth lanes

// For loads and stores at any address; memcpy of a whole F goes through 16-byte pieces on the stack in GCC 12.
using UnalignedVf __attribute__((vector_size(kWidth * 4), aligned(1), may_alias)) = float;
using UnalignedVd __attribute__((vector_size(kWidth * 4), aligned(1), may_alias)) = double;
using UnalignedVh __attribute__((vector_size(kWidth * 2), aligned(1), may_alias)) = std::uint16_t;
using UnalignedVs __attribute__((vector_size(kWidth * 4), aligned(1), may_alias)) = std::int16_t;

struct F {
  Vf v[kParts];
};
struct D {
  Vd v[2 * kParts];
};
struct I {
  Vi v[kParts];
};

// Storage types. Arithmetic happens in float32 or float64 only.
struct Half {
  std::uint16_t bits;
};
struct BFloat {
  std::uint16_t bits;
};

#define BOOST_EXT_EACH(i) _Pragma("GCC unroll 4") for (int i = 0; i < kParts; ++i)
#define BOOST_EXT_EACH2(i) _Pragma("GCC unroll 8") for (int i = 0; i < 2 * kParts; ++i)
#define BOOST_EXT_EACH_OF(n, i) _Pragma("GCC unroll 16") for (int i = 0; i < n; ++i)

BOOST_EXT_INLINE F operator+(F a, F b) {
  BOOST_EXT_EACH(i) a.v[i] += b.v[i];
  return a;
}
BOOST_EXT_INLINE F operator-(F a, F b) {
  BOOST_EXT_EACH(i) a.v[i] -= b.v[i];
  return a;
}
BOOST_EXT_INLINE F operator*(F a, F b) {
  BOOST_EXT_EACH(i) a.v[i] *= b.v[i];
  return a;
}
BOOST_EXT_INLINE F operator*(float s, F b) {
  BOOST_EXT_EACH(i) b.v[i] *= s;
  return b;
}
BOOST_EXT_INLINE F all(float s) {
  F r;
  BOOST_EXT_EACH(i) r.v[i] = s - Vf{};
  return r;
}
BOOST_EXT_INLINE F operator/(F a, F b) {
  BOOST_EXT_EACH(i) a.v[i] /= b.v[i];
  return a;
}
// Where x < y, a, otherwise b: also where one of x and y is nan.
BOOST_EXT_INLINE F where_less(F x, F y, F a, F b) {
  BOOST_EXT_EACH(i) b.v[i] = x.v[i] < y.v[i] ? a.v[i] : b.v[i];
  return b;
}
BOOST_EXT_INLINE F where_equal(F x, F y, F a, F b) {
  BOOST_EXT_EACH(i) b.v[i] = x.v[i] == y.v[i] ? a.v[i] : b.v[i];
  return b;
}
BOOST_EXT_INLINE F max(F a, F b) { return where_less(b, a, a, b); }
BOOST_EXT_INLINE F abs(F a) {
  BOOST_EXT_EACH(i) a.v[i] = reinterpret_cast<Vf>(reinterpret_cast<Vi>(a.v[i]) & 0x7fffffff);
  return a;
}
// |a| with the sign of b.
BOOST_EXT_INLINE F copy_sign(F a, F b) {
  BOOST_EXT_EACH(i) {
    const Vu sign = reinterpret_cast<Vu>(b.v[i]) & 0x80000000u;
    a.v[i] = reinterpret_cast<Vf>((reinterpret_cast<Vu>(a.v[i]) & 0x7fffffffu) | sign);
  }
  return a;
}
BOOST_EXT_INLINE Vf square_root(Vf a) {
#if defined(__AVX512F__)
  return reinterpret_cast<Vf>(_mm512_sqrt_ps(reinterpret_cast<__m512>(a)));
#elif defined(__AVX2__)
  return reinterpret_cast<Vf>(_mm256_sqrt_ps(reinterpret_cast<__m256>(a)));
#elif defined(__x86_64__)
  return reinterpret_cast<Vf>(_mm_sqrt_ps(reinterpret_cast<__m128>(a)));
#elif defined(__aarch64__)
  return reinterpret_cast<Vf>(vsqrtq_f32(reinterpret_cast<float32x4_t>(a)));
#else
  for (int i = 0; i < kWidth; ++i) a[i] = __builtin_sqrtf(a[i]);
  return a;
#endif
}
BOOST_EXT_INLINE F sqrt(F a) {
  BOOST_EXT_EACH(i) a.v[i] = square_root(a.v[i]);
  return a;
}
BOOST_EXT_INLINE double square_root(double a) { return __builtin_sqrt(a); }
BOOST_EXT_INLINE F raise(F a, float exponent) {
  float lane[kLanes];
  std::memcpy(lane, &a, sizeof lane);
  for (float& value : lane) value = __builtin_powf(value, exponent);
  std::memcpy(&a, lane, sizeof lane);
  return a;
}
BOOST_EXT_INLINE D operator+(D a, D b) {
  BOOST_EXT_EACH2(i) a.v[i] += b.v[i];
  return a;
}
BOOST_EXT_INLINE D operator*(D a, D b) {
  BOOST_EXT_EACH2(i) a.v[i] *= b.v[i];
  return a;
}

// The bits of |x| as integers: ordered like |x|, with inf at 0x7f800000 and every nan above it.
constexpr std::int32_t kInfBits = 0x7f800000;
BOOST_EXT_INLINE I magnitude_bits(F a) {
  I r;
  BOOST_EXT_EACH(i) r.v[i] = reinterpret_cast<Vi>(a.v[i]) & 0x7fffffff;
  return r;
}
BOOST_EXT_INLINE I max(I a, I b) {
  BOOST_EXT_EACH(i) a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i];
  return a;
}
BOOST_EXT_INLINE std::int32_t max_lane(I a) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_epi32(reinterpret_cast<__m512i>(a.v[0]));
#else
  std::int32_t lane[kLanes];
  std::memcpy(lane, &a, sizeof lane);
  std::int32_t m = lane[0];
  for (int i = 1; i < kLanes; ++i) m = lane[i] > m ? lane[i] : m;
  return m;
#endif
}

// Sixteen bits as integers, and the upper sixteen bits of each lane. By hand, since GCC 12 converts by several shuffles
// where one instruction does it, and shuffles have one port on Intel.
#if defined(__AVX512F__)
BOOST_EXT_INLINE Vu to_words(Vh h) { return reinterpret_cast<Vu>(_mm512_cvtepu16_epi32(reinterpret_cast<__m256i>(h))); }
BOOST_EXT_INLINE Vh upper_halves(Vu x) {
  const auto odd = _mm512_castsi256_si512(_mm256_set_epi16(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1));
  return reinterpret_cast<Vh>(_mm512_castsi512_si256(_mm512_permutexvar_epi16(odd, reinterpret_cast<__m512i>(x))));
}
#elif defined(__AVX2__)
BOOST_EXT_INLINE Vu to_words(Vh h) { return reinterpret_cast<Vu>(_mm256_cvtepu16_epi32(reinterpret_cast<__m128i>(h))); }
BOOST_EXT_INLINE Vh upper_halves(Vu x) {
  const __m256i low = _mm256_srli_epi32(reinterpret_cast<__m256i>(x), 16);
  return reinterpret_cast<Vh>(_mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1)));
}
#elif defined(__x86_64__)
BOOST_EXT_INLINE Vu to_words(Vh h) {
  const __m128i low = _mm_cvtsi64_si128(reinterpret_cast<std::int64_t>(h));
  return reinterpret_cast<Vu>(_mm_unpacklo_epi16(low, _mm_setzero_si128()));
}
BOOST_EXT_INLINE Vh upper_halves(Vu x) {
  const __m128i low = _mm_srai_epi32(reinterpret_cast<__m128i>(x), 16);  // with its sign: the instruction packs those
  return reinterpret_cast<Vh>(_mm_cvtsi128_si64(_mm_packs_epi32(low, low)));
}
#elif defined(__aarch64__)
BOOST_EXT_INLINE Vu to_words(Vh h) { return reinterpret_cast<Vu>(vmovl_u16(reinterpret_cast<uint16x4_t>(h))); }
BOOST_EXT_INLINE Vh upper_halves(Vu x) {
  return reinterpret_cast<Vh>(vshrn_n_u32(reinterpret_cast<uint32x4_t>(x), 16));
}
#else
BOOST_EXT_INLINE Vu to_words(Vh h) { return __builtin_convertvector(h, Vu); }
BOOST_EXT_INLINE Vh upper_halves(Vu x) { return __builtin_convertvector(x >> 16, Vh); }
#endif
// The upper half of `rounded`, but a nan stays one: it must not round to inf.
BOOST_EXT_INLINE Vh upper_halves(Vf a, Vu rounded) {
  return upper_halves(a != a ? reinterpret_cast<Vu>(a) | 0x400000u : rounded);
}

#if defined(__AVX512F__)
BOOST_EXT_INLINE Vd widen_low(Vf a) {
  return reinterpret_cast<Vd>(_mm512_cvtps_pd(_mm512_castps512_ps256(reinterpret_cast<__m512>(a))));
}
BOOST_EXT_INLINE Vd widen_high(Vf a) {
  return reinterpret_cast<Vd>(_mm512_cvtps_pd(_mm512_extractf32x8_ps(reinterpret_cast<__m512>(a), 1)));
}
BOOST_EXT_INLINE Vf from_half(Vh h) { return reinterpret_cast<Vf>(_mm512_cvtph_ps(reinterpret_cast<__m256i>(h))); }
BOOST_EXT_INLINE Vh to_half(Vf f) {
  return reinterpret_cast<Vh>(_mm512_cvtps_ph(reinterpret_cast<__m512>(f), _MM_FROUND_TO_NEAREST_INT));
}
#elif defined(__AVX2__)
BOOST_EXT_INLINE Vd widen_low(Vf a) {
  return reinterpret_cast<Vd>(_mm256_cvtps_pd(_mm256_castps256_ps128(reinterpret_cast<__m256>(a))));
}
BOOST_EXT_INLINE Vd widen_high(Vf a) {
  return reinterpret_cast<Vd>(_mm256_cvtps_pd(_mm256_extractf128_ps(reinterpret_cast<__m256>(a), 1)));
}
BOOST_EXT_INLINE Vf from_half(Vh h) { return reinterpret_cast<Vf>(_mm256_cvtph_ps(reinterpret_cast<__m128i>(h))); }
BOOST_EXT_INLINE Vh to_half(Vf f) {
  return reinterpret_cast<Vh>(_mm256_cvtps_ph(reinterpret_cast<__m256>(f), _MM_FROUND_TO_NEAREST_INT));
}
#elif defined(__aarch64__)
BOOST_EXT_INLINE Vd widen_low(Vf a) {
  return reinterpret_cast<Vd>(vcvt_f64_f32(vget_low_f32(reinterpret_cast<float32x4_t>(a))));
}
BOOST_EXT_INLINE Vd widen_high(Vf a) {
  return reinterpret_cast<Vd>(vcvt_high_f64_f32(reinterpret_cast<float32x4_t>(a)));
}
BOOST_EXT_INLINE Vf from_half(Vh h) { return reinterpret_cast<Vf>(vcvt_f32_f16(reinterpret_cast<float16x4_t>(h))); }
BOOST_EXT_INLINE Vh to_half(Vf f) { return reinterpret_cast<Vh>(vcvt_f16_f32(reinterpret_cast<float32x4_t>(f))); }
#else
using HalfVf __attribute__((vector_size(kWidth * 2))) = float;
BOOST_EXT_INLINE Vd widen_low(Vf a) { return __builtin_convertvector(HalfVf{a[0], a[1]}, Vd); }
BOOST_EXT_INLINE Vd widen_high(Vf a) { return __builtin_convertvector(HalfVf{a[2], a[3]}, Vd); }
BOOST_EXT_INLINE Vf from_half(Vh h) {
  const Vu wide = to_words(h);
  // The half's exponent and mantissa, moved to their float32 places, are the value times 2^-112: exact to undo, also
  // for subnormals. Only inf and nan need their exponent set.
  const Vf scaled = reinterpret_cast<Vf>((wide & 0x7fffu) << 13) * 0x1p112f;
  const Vu special = (wide & 0x7c00u) == 0x7c00u ? (wide & 0x7c00u) * 0 + 0x7f800000u : wide * 0;
  return reinterpret_cast<Vf>(reinterpret_cast<Vu>(scaled) | special | ((wide & 0x8000u) << 16));
}
BOOST_EXT_INLINE Vh to_half(Vf f) {
  const Vu bits = reinterpret_cast<Vu>(f);
  const Vu magnitude = bits & 0x7fffffffu;
  const Vu zero = bits & 0u;
  // Normal halves: add half of the last kept bit, ties to even, and shift. A carry out of the mantissa is right, too.
  const Vu normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  // Subnormal halves: adding 0.5 puts the last bit of the half at the last bit of the float, and the FPU rounds.
  const Vf shifted = reinterpret_cast<Vf>(magnitude) + 0.5f;
  const Vu subnormal = reinterpret_cast<Vu>(shifted) - 0x3f000000u;
  const Vu nan = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  Vu half = magnitude < 0x38800000u ? subnormal : normal;
  half = magnitude >= 0x477ff000u ? zero + 0x7c00u : half;  // 65520 and up round to inf
  half = magnitude > 0x7f800000u ? nan : half;
  return upper_halves((half << 16) | (bits & 0x80000000u));
}
#endif

BOOST_EXT_INLINE Vf load_floats(const float* p) { return *reinterpret_cast<const UnalignedVf*>(p); }
template <class T> BOOST_EXT_INLINE Vh load_halves(const T* p) { return *reinterpret_cast<const UnalignedVh*>(p); }
template <class T> BOOST_EXT_INLINE void store_halves(T* p, Vh h) { *reinterpret_cast<UnalignedVh*>(p) = h; }

BOOST_EXT_INLINE F load(const float* p) {
  F r;
  BOOST_EXT_EACH(i) r.v[i] = load_floats(p + i * kWidth);
  return r;
}
BOOST_EXT_INLINE F load(const Half* p) {
  F r;
  BOOST_EXT_EACH(i) r.v[i] = from_half(load_halves(p + i * kWidth));
  return r;
}
BOOST_EXT_INLINE F load(const BFloat* p) {
  F r;
  BOOST_EXT_EACH(i) r.v[i] = reinterpret_cast<Vf>(to_words(load_halves(p + i * kWidth)) << 16);
  return r;
}
BOOST_EXT_INLINE void store(float* p, F a) {
  BOOST_EXT_EACH(i) * reinterpret_cast<UnalignedVf*>(p + i * kWidth) = a.v[i];
}
BOOST_EXT_INLINE void store(Half* p, F a) { BOOST_EXT_EACH(i) store_halves(p + i * kWidth, to_half(a.v[i])); }
BOOST_EXT_INLINE void store(BFloat* p, F a) {
  BOOST_EXT_EACH(i) {
    const Vu bits = reinterpret_cast<Vu>(a.v[i]);
    store_halves(p + i * kWidth, upper_halves(a.v[i], bits + 0x7fffu + ((bits >> 16) & 1u)));  // ties to even
  }
}

template <class T> BOOST_EXT_INLINE float as_float(const T* p) {
  T some[kLanes] = {};
  some[0] = *p;
  float lanes[kLanes];
  store(lanes, load(some));
  return lanes[0];
}

BOOST_EXT_INLINE D load(const double* p) {
  D r;
  BOOST_EXT_EACH2(i) r.v[i] = *reinterpret_cast<const UnalignedVd*>(p + i * kWidth / 2);
  return r;
}
BOOST_EXT_INLINE void store(double* p, D a) {
  BOOST_EXT_EACH2(i) * reinterpret_cast<UnalignedVd*>(p + i * kWidth / 2) = a.v[i];
}
BOOST_EXT_INLINE D widen(F a) {
  D r;
  BOOST_EXT_EACH(i) {
    r.v[2 * i] = widen_low(a.v[i]);
    r.v[2 * i + 1] = widen_high(a.v[i]);
  }
  return r;
}

// a * b + c, rounded once, where there is an instruction for it.
#if defined(__AVX512F__)
#define BOOST_EXT_FUSED
BOOST_EXT_INLINE Vf fused(Vf a, Vf b, Vf c) {
  const auto x = reinterpret_cast<__m512>(a), y = reinterpret_cast<__m512>(b);
  return reinterpret_cast<Vf>(_mm512_fmadd_ps(x, y, reinterpret_cast<__m512>(c)));
}
BOOST_EXT_INLINE Vd fused(Vd a, Vd b, Vd c) {
  const auto x = reinterpret_cast<__m512d>(a), y = reinterpret_cast<__m512d>(b);
  return reinterpret_cast<Vd>(_mm512_fmadd_pd(x, y, reinterpret_cast<__m512d>(c)));
}
#elif defined(__AVX2__)
#define BOOST_EXT_FUSED
BOOST_EXT_INLINE Vf fused(Vf a, Vf b, Vf c) {
  const auto x = reinterpret_cast<__m256>(a), y = reinterpret_cast<__m256>(b);
  return reinterpret_cast<Vf>(_mm256_fmadd_ps(x, y, reinterpret_cast<__m256>(c)));
}
BOOST_EXT_INLINE Vd fused(Vd a, Vd b, Vd c) {
  const auto x = reinterpret_cast<__m256d>(a), y = reinterpret_cast<__m256d>(b);
  return reinterpret_cast<Vd>(_mm256_fmadd_pd(x, y, reinterpret_cast<__m256d>(c)));
}
#elif defined(__aarch64__)
#define BOOST_EXT_FUSED
BOOST_EXT_INLINE Vf fused(Vf a, Vf b, Vf c) {
  const auto x = reinterpret_cast<float32x4_t>(a), y = reinterpret_cast<float32x4_t>(b);
  return reinterpret_cast<Vf>(vfmaq_f32(reinterpret_cast<float32x4_t>(c), x, y));
}
BOOST_EXT_INLINE Vd fused(Vd a, Vd b, Vd c) {
  const auto x = reinterpret_cast<float64x2_t>(a), y = reinterpret_cast<float64x2_t>(b);
  return reinterpret_cast<Vd>(vfmaq_f64(reinterpret_cast<float64x2_t>(c), x, y));
}
#endif

// sum + a * b of lanes that were float32: the product is exact in float64, so fused or not the bits are the same.
BOOST_EXT_INLINE D add_product(D sum, D a, D b) {
#if defined(BOOST_EXT_FUSED)
  BOOST_EXT_EACH2(i) sum.v[i] = fused(a.v[i], b.v[i], sum.v[i]);
  return sum;
#else
  return sum + a * b;
#endif
}
// The same in float32, of lanes that were half precision.
BOOST_EXT_INLINE F add_product(F sum, F a, F b) {
#if defined(BOOST_EXT_FUSED)
  BOOST_EXT_EACH(i) sum.v[i] = fused(a.v[i], b.v[i], sum.v[i]);
  return sum;
#else
  return sum + a * b;
#endif
}

// The sum of the lanes in float64, in one fixed order.
BOOST_EXT_INLINE double sum(D a) {
  double lane[kLanes];
  std::memcpy(lane, &a, sizeof lane);
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lane[i] += lane[i + half];
  }
  return lane[0];
}
BOOST_EXT_INLINE double sum(F a) { return sum(widen(a)); }

// Thirty-two elements of sixteen bits, as they lie in memory: for loops to which the order of elements is nothing.
struct S {
  Vs v[kParts];
};
template <class T> BOOST_EXT_INLINE S load_shorts(const T* p) {
  S r;
  BOOST_EXT_EACH(i) r.v[i] = *reinterpret_cast<const UnalignedVs*>(p + i * 2 * kWidth);
  return r;
}
template <class T> BOOST_EXT_INLINE void store_shorts(T* p, S a) {
  BOOST_EXT_EACH(i) * reinterpret_cast<UnalignedVs*>(p + i * 2 * kWidth) = a.v[i];
}
// The bfloat16 at even places and those at odd ones: no element changes its lane.
BOOST_EXT_INLINE F evens(S a) {
  F r;
  BOOST_EXT_EACH(i) r.v[i] = reinterpret_cast<Vf>(reinterpret_cast<Vu>(a.v[i]) << 16);
  return r;
}
BOOST_EXT_INLINE F odds(S a) {
  F r;
  BOOST_EXT_EACH(i) r.v[i] = reinterpret_cast<Vf>(reinterpret_cast<Vu>(a.v[i]) & 0xffff0000u);
  return r;
}
// The upper halves of words, those of a at even places and those of b at odd ones; and the lower halves.
BOOST_EXT_INLINE Vs uppers(Vu a, Vu b) {
#if defined(__aarch64__)
  return vtrn2q_s16(reinterpret_cast<Vs>(a), reinterpret_cast<Vs>(b));
#elif defined(__AVX2__) && !defined(__AVX512F__)
  return reinterpret_cast<Vs>(
      _mm256_blend_epi16(reinterpret_cast<__m256i>(a >> 16), reinterpret_cast<__m256i>(b), 0xaa));
#else
  return reinterpret_cast<Vs>((a >> 16) | (b & 0xffff0000u));
#endif
}
BOOST_EXT_INLINE Vs lowers(Vu a, Vu b) {
#if defined(__aarch64__)
  return vtrn1q_s16(reinterpret_cast<Vs>(a), reinterpret_cast<Vs>(b));
#elif defined(__AVX2__) && !defined(__AVX512F__)
  return reinterpret_cast<Vs>(
      _mm256_blend_epi16(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b << 16), 0xaa));
#else
  return reinterpret_cast<Vs>((a & 0xffffu) | (b << 16));
#endif
}
// Whether x > 0x8000 of unsigned numbers, which AVX2 compares only as signed ones.
BOOST_EXT_INLINE Vs more_than_half(Vs x) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  return (x ^ static_cast<std::int16_t>(-0x8000)) > 0;
#else
  using Unsigned __attribute__((vector_size(sizeof(Vs)))) = std::uint16_t;
  return reinterpret_cast<Unsigned>(x) > 0x8000;
#endif
}
// Both together again, rounded as store() does. A nan must have nothing but zeros in its lower half, as what comes of
// arithmetic on bfloat16 has.
BOOST_EXT_INLINE S to_bfloats(F even, F odd) {
  S r;
  BOOST_EXT_EACH(i) {
    const Vu a = reinterpret_cast<Vu>(even.v[i]), b = reinterpret_cast<Vu>(odd.v[i]);
    const Vs upper = uppers(a, b), lower = lowers(a, b);
    // Up where the lower half is more than 0x8000, or is that and the upper half odd.
    r.v[i] = upper - more_than_half(lower | (upper & 1));
  }
  return r;
}
// Lanes of all bits or none, twice as wide.
BOOST_EXT_INLINE void widen_mask(Vs mask, Vi (&wide)[2]) {
#if defined(__AVX512F__)
  const auto m = reinterpret_cast<__m512i>(mask);
  wide[0] = reinterpret_cast<Vi>(_mm512_cvtepi16_epi32(_mm512_castsi512_si256(m)));
  wide[1] = reinterpret_cast<Vi>(_mm512_cvtepi16_epi32(_mm512_extracti64x4_epi64(m, 1)));
#elif defined(__AVX2__)
  const auto m = reinterpret_cast<__m256i>(mask);
  wide[0] = reinterpret_cast<Vi>(_mm256_cvtepi16_epi32(_mm256_castsi256_si128(m)));
  wide[1] = reinterpret_cast<Vi>(_mm256_cvtepi16_epi32(_mm256_extracti128_si256(m, 1)));
#else
  for (int i = 0; i < kWidth; ++i) {
    wide[0][i] = mask[i];
    wide[1][i] = mask[kWidth + i];
  }
#endif
}
BOOST_EXT_INLINE S magnitude_bits(S a) {
  BOOST_EXT_EACH(i) a.v[i] &= 0x7fff;
  return a;
}
BOOST_EXT_INLINE S max(S a, S b) {
  BOOST_EXT_EACH(i) a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i];
  return a;
}
BOOST_EXT_INLINE std::uint16_t max_lane(S a) {
  std::int16_t lane[2 * kLanes];
  store_shorts(lane, a);
  std::int16_t m = lane[0];
  for (int i = 1; i < 2 * kLanes; ++i) m = lane[i] > m ? lane[i] : m;
  return static_cast<std::uint16_t>(m);
}

}  // namespace boost_ext::cpu::BOOST_EXT_ISA
