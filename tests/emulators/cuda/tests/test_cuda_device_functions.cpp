// Functions of the device: conversions of every half-precision number, atomics, bits, min and max.
#include <limits>

#include "cuda_bf16.h"
#include "cuda_fp16.h"
#include "on_device.h"

namespace native {

namespace {

// The nearest of the magnitudes `value(0) < value(1) < …`, the even one of two; what is as near to `value(last + 1)`
// as to the largest is infinity, `last + 1`. An oracle by search, in float64, where all of it is exact.
template <class F> unsigned nearest(double magnitude, unsigned last, F value) {
  unsigned low = 0, high = last + 1;
  while (high - low > 1) {
    const unsigned middle = (low + high) / 2;
    (value(middle) <= magnitude ? low : high) = middle;
  }
  const double below = magnitude - value(low), above = value(high) - magnitude;
  return below < above || (below == above && low % 2 == 0) ? low : high;
}
double half_magnitude(unsigned bits) {  // also of the one behind the largest, were there more exponents
  const int exponent = static_cast<int>(bits >> 10);
  return exponent == 0 ? std::ldexp(bits, -24) : std::ldexp(1024 + (bits & 1023), exponent - 25);
}
double brain_magnitude(unsigned bits) {
  const int exponent = static_cast<int>(bits >> 7);
  return exponent == 0 ? std::ldexp(bits, -133) : std::ldexp(128 + (bits & 127), exponent - 134);
}

unsigned expected_half(float f) {
  if (std::isnan(f)) return 0x7fff;
  const double magnitude = std::fabs(static_cast<double>(f));
  const unsigned bits = std::isinf(f) ? 0x7c00 : nearest(magnitude, 0x7bff, half_magnitude);
  return bits | (std::signbit(f) ? 0x8000 : 0);
}
unsigned expected_brain(float f) {
  if (std::isnan(f)) return 0x7fff;
  const double magnitude = std::fabs(static_cast<double>(f));
  const unsigned bits = std::isinf(f) ? 0x7f80 : nearest(magnitude, 0x7f7f, brain_magnitude);
  return bits | (std::signbit(f) ? 0x8000 : 0);
}

void test_widening() {
  int wrong = 0;
  for (unsigned bits = 0; bits < 0x10000; ++bits) {
    const auto b = static_cast<unsigned short>(bits);
    const float half = __half2float(__ushort_as_half(b)), brain = __bfloat162float(__ushort_as_bfloat16(b));
    const unsigned magnitude = bits & 0x7fff;
    const bool negative = bits >= 0x8000;
    if (magnitude > 0x7c00) {
      wrong += __float_as_uint(half) != 0x7fffffff;
      wrong += __half_as_ushort(__float2half(half)) != 0x7fff;
    } else {
      const double expected = magnitude == 0x7c00 ? INFINITY : half_magnitude(magnitude);
      wrong += half != (negative ? -expected : expected) || std::signbit(half) != negative;
      wrong += __half_as_ushort(__float2half(half)) != bits;
    }
    wrong += __float_as_uint(brain) != bits << 16;
    wrong += __bfloat16_as_ushort(__float2bfloat16(brain)) != (magnitude > 0x7f80 ? 0x7fff : bits);
  }
  CHECK(wrong == 0);
}

void test_narrowing() {
  int wrong = 0;
  const auto check = [&](unsigned bits) {
    const float f = __uint_as_float(bits);
    wrong += __half_as_ushort(__float2half_rn(f)) != expected_half(f);
    wrong += __bfloat16_as_ushort(__float2bfloat16_rn(f)) != expected_brain(f);
  };
  // Each number of half precision, and the points halfway to the next one, and their neighbours on both sides.
  for (unsigned bits = 0; bits < 0x10000; ++bits) {
    const auto b = static_cast<unsigned short>(bits);
    const unsigned half = __float_as_uint(__half2float(__ushort_as_half(b)));
    const unsigned to_next =
        (bits & 0x7fff) >= 0x400 || (bits & 0x7fff) == 0
            ? 0x1000
            : (1U << (23 - (31 - static_cast<unsigned>(__clz(static_cast<int>(bits & 0x7fff)))))) / 2;
    for (const unsigned centre : {half, half + to_next, bits << 16, (bits << 16) + 0x8000}) {
      for (int d = -1; d <= 1; ++d) check(centre + static_cast<unsigned>(d));
    }
  }
  std::mt19937 random(1);
  for (int i = 0; i < 200000; ++i) check(static_cast<unsigned>(random()));
  CHECK(wrong == 0);
  CHECK(__half_as_ushort(__float2half(65519.996F)) == 0x7bff && __half_as_ushort(__float2half(65520)) == 0x7c00);
  CHECK(__half_as_ushort(__float2half(0x1p-25F)) == 0 && __half_as_ushort(__float2half(-0x1.000002p-25F)) == 0x8001);
}

template <class T> void test_integer_atomics() {
  T sum = 1, least = 50, most = 50, all = static_cast<T>(-1), some = 0, taken = 0, odd = 0, spin = 0;
  T before = 0;
  run(4, 64, [&] {
    const T me = static_cast<T>(blockIdx.x * 64 + threadIdx.x);
    atomicAdd(&sum, me);
    atomicMin(&least, static_cast<T>(me + 7));
    atomicMax(&most, me);
    atomicAnd(&all, static_cast<T>(~(T{1} << me % 31)));
    atomicOr(&some, T{1} << me % 31);
    atomicXor(&odd, me);
    before += atomicExch(&taken, static_cast<T>(me + 1));
    while (true) {
      const T seen = spin;
      if (atomicCAS(&spin, seen, static_cast<T>(seen + 2)) == seen) break;
    }
  });
  CHECK(sum == 1 + 255 * 128 && least == 7 && most == 255 && spin == 512 && odd == 0);
  CHECK(all == static_cast<T>(~T{0x7fffffff}) && some == T{0x7fffffff} && before + taken == 256 * 257 / 2);
  T value = 3;
  CHECK(atomicCAS(&value, T{4}, T{5}) == 3 && value == 3 && atomicCAS(&value, T{3}, T{5}) == 3 && value == 5);
}

void test_atomics() {
  test_integer_atomics<int>();
  test_integer_atomics<unsigned>();
  test_integer_atomics<unsigned long long>();
  float f = 0;
  double d = 0;
  run(2, 64, [&] {
    atomicAdd(&f, 0.5F);
    atomicAdd(&d, 0.25);
    __threadfence();
    __threadfence_block();
  });
  CHECK(f == 64 && d == 32);
  int low = -5;
  CHECK(atomicMax(&low, -7) == -5 && low == -5 && atomicMin(&low, -7) == -5 && low == -7);
  // Sums in ever other orders: a kernel that relies on one is found.
  float sums[8];
  for (float& s : sums) {
    s = 0;
    run(4, 64, [&] { atomicAdd(&s, 1.0F / static_cast<float>(threadIdx.x + 1)); });
  }
  CHECK(std::count(sums, sums + 8, sums[0]) < 8);
}

void test_bits() {
  CHECK(__float_as_uint(-2.0F) == 0xc0000000 && __uint_as_float(0x3f800000) == 1 && __float_as_int(-0.0F) < 0);
  CHECK(__int_as_float(0x7f800000) == INFINITY && __longlong_as_double(__double_as_longlong(-1.5)) == -1.5);
  CHECK(__clz(0) == 32 && __clz(1) == 31 && __clz(-1) == 0 && __popc(0xf0f) == 8 && __ffs(0) == 0 && __ffs(8) == 4);
  CHECK(__clzll(1) == 63 && __popcll(~0ULL) == 64 && __ffsll(1LL << 40) == 41 && __clzll(0) == 64);
}

void test_byte_perm() {
  CHECK(__byte_perm(0x33221100, 0x77665544, 0x3210) == 0x33221100);
  CHECK(__byte_perm(0x33221100, 0x77665544, 0x7440) == 0x77444400 && __byte_perm(0, 0x77665544, 0x5410) == 0x55440000);
  CHECK(__byte_perm(0x33221100, 0x77665544, 0xcbaf) == 0x44332277);  // the last bit of a selector is ignored
}

void test_min_max() {
  CHECK(min(-1, 2) == -1 && max(-1, 2) == 2 && min(-1, 2U) == 2 && max(3ULL, -1LL) == ~0ULL && min(5LL, 4LL) == 4);
  CHECK(min(1.5F, NAN) == 1.5F && max(NAN, 1.5F) == 1.5F && max(2.0, 3.0F) == 3 && min(2.0F, -1.0F) == -1);
}

void test_arithmetic() {
  const float a = 1 + 0x1p-12F;
  CHECK(__fadd_rn(__fmul_rn(a, a), -1) == 0x1p-11F && __fmaf_rn(a, a, -1) == 0x1p-11F + 0x1p-24F);
  CHECK(__fadd_rz(0x1p23F, 5.75F) == 0x1p23F + 5 && __fadd_rz(-0x1p23F, -5.75F) == -0x1p23F - 5);
  CHECK(__fadd_rz(1, 0x1p-30F) == 1 && __fadd_rz(1, -0x1p-30F) == 1 - 0x1p-24F && __fadd_rz(1.5F, 2.25F) == 3.75F);
  CHECK(isnan(__fadd_rz(NAN, 1)) && __fadd_rz(INFINITY, 1) == INFINITY && __fadd_rz(0x1p-30F, -1) == 0x1p-24F - 1);
  CHECK(__fdiv_rn(1, 3) == 1.0F / 3 && __fsqrt_rn(2) == std::sqrt(2.0F) && __frcp_rn(0) == INFINITY);
  CHECK(__dadd_rn(1, 2) == 3 && __dmul_rn(3, 4) == 12 && __ddiv_rn(1, 3) == 1.0 / 3 && __dsqrt_rn(4) == 2);
  CHECK(sqrtf(4) == 2 && fabsf(-1) == 1 && copysignf(1, -0.0F) == -1 && powf(2, 3) == 8);
  CHECK(isnan(NAN) && isinf(-INFINITY) && isfinite(1.0F) && fmaxf(1, NAN) == 1);
}

void test_vectors() {
  static_assert(sizeof(float4) == 16 && alignof(float4) == 16 && alignof(float2) == 8 && alignof(double2) == 16);
  static_assert(alignof(uint4) == 16 && alignof(int2) == 8 && alignof(longlong2) == 16 && alignof(ushort4) == 8);
  static_assert(sizeof(float3) == 12 && alignof(uchar4) == 4 && alignof(short2) == 4);
  alignas(16) float memory[8] = {0, 1, 2, 3, 4, 5, 6, 7};
  CHECK(__ldg(reinterpret_cast<const float4*>(memory + 4)).z == 6);
  __stcs(reinterpret_cast<float4*>(memory), make_float4(9, 8, 7, 6));
  CHECK(memory[3] == 6 && __ldcs(memory + 1) == 8);
  CHECK_THROWS(__ldg(reinterpret_cast<const float4*>(memory + 1)), std::logic_error, "misaligned address");
  CHECK(make_uint2(1, 2).y == 2 && make_longlong2(3, 4).x == 3 && make_int4(1, 2, 3, 4).w == 4);
}

}  // namespace

void test_cuda_device_functions() {
  test_widening();
  test_narrowing();
  test_atomics();
  test_bits();
  test_byte_perm();
  test_min_max();
  test_arithmetic();
  test_vectors();
}

}  // namespace native
