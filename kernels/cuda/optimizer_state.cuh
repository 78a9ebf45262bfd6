// Optimizer state of 8 and 16 bits, to float32 and back, with the bits of the CPU kernels: ops/optimizer_step.h says
// what they are.
#pragma once

#include "ops/optimizer_step.h"
#include "packs.cuh"

namespace boost_ext::cuda {

static_assert(kStateBlock == kWarp * kPack, "a warp shares a scale");

// Random bits of some elements: a hash of their indices ("lowbias32" of Wellons' hash prospector).
struct Random {
  unsigned bits[kPack];
};
BOOST_EXT_DEVICE Random random_bits(std::uint64_t key, std::int64_t index) {
  Random random;
  const unsigned in = static_cast<unsigned>(key) ^ (static_cast<unsigned>(index >> 32) * 0x9e3779b9u);
  const auto last = static_cast<unsigned>(key >> 32);
#pragma unroll
  for (int j = 0; j < kPack; ++j) {
    unsigned x = (static_cast<unsigned>(index) + static_cast<unsigned>(j)) ^ in;
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = (x ^ (x >> 15)) * 0x846ca68bu;
    random.bits[j] = x ^ (x >> 16) ^ last;
  }
  return random;
}
// The sixteen bits of state k.
BOOST_EXT_DEVICE unsigned sixteen_bits(unsigned random, int k) { return (random >> (16 * k)) & 0xffffu; }

// As a bfloat16 is stored, in the upper half of a float32: away from 0 as often as the bits cut off say.
BOOST_EXT_DEVICE float rounded_at_random(float x, unsigned sixteen) {
  const unsigned bits = __float_as_uint(x);
  const bool nan = (bits & 0x7fffffffu) > kInfBits;
  return __uint_as_float((nan ? bits | 0x400000u : bits + sixteen) & 0xffff0000u);
}

// The bits of a float are its logarithm, linear between powers of two; so bits times four are those of its fourth
// power, nearly, and that is what a code stands for.
template <bool kSigned> struct Codes {
  static constexpr unsigned kOne = kSigned ? 134 : 135;  // the exponent of the code of scale: 128 or 256
  static constexpr unsigned kShift = (4 * kOne - 127) << 21;

  static BOOST_EXT_DEVICE float decode(unsigned code, float scale) {
    const unsigned magnitude = kSigned ? code & 0x7fu : code;
    const unsigned root = __float_as_uint(static_cast<float>(magnitude));
    const float y = scale * (magnitude == 0 ? 0.0F : __uint_as_float((root - kShift) << 2));
    return kSigned ? __uint_as_float(__float_as_uint(y) | (code & 0x80u) << 24) : y;
  }
  // Up to the next code as often as y lies nearer to it, so that the mean is kept.
  static BOOST_EXT_DEVICE unsigned encode(float x, float inverse, unsigned sixteen) {
    const unsigned bits = __float_as_uint(x);
    const float y = inverse * __uint_as_float(bits & 0x7fffffffu);
    const float root = __uint_as_float((__float_as_uint(y) >> 2) + kShift);
    const float chance = 0x1p-16F * static_cast<float>(sixteen);
    const auto code = static_cast<unsigned>(static_cast<int>(root + chance));
    if (kSigned) return code | ((bits >> 24) & 0x80u);
    return code + (y > 0 && code == 0 ? 1 : 0);  // a second moment of 0 would leave eps alone to divide the first one
  }
};

BOOST_EXT_DEVICE void store_upper_halves(void* p, std::int64_t i, Count n, bool aligned, const Pack& x) {
  unsigned short* to = static_cast<unsigned short*>(p) + i;
  if (n.together || (aligned && n == kPack)) {
    Raw raw{};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      raw.word[j] = __float_as_uint(x.v[2 * j]) >> 16 | (__float_as_uint(x.v[2 * j + 1]) & 0xffff0000u);
    }
    return store_raw(reinterpret_cast<char*>(to), 4, n.together, n.aligned, raw);
  }
#pragma unroll
  for (int j = 0; j < kPack; ++j) {
    if (j < n) to[j] = static_cast<unsigned short>(__float_as_uint(x.v[j]) >> 16);
  }
}

// The smallest power of two of which the largest magnitude of a block is at most 1 - 1/32. nan where that is beyond
// 2^126, or there is inf or nan; then inverse is 0.
struct BlockScale {
  float scale, inverse;
  BOOST_EXT_DEVICE explicit BlockScale(unsigned largest) {
    constexpr unsigned kLow = 40, kHigh = 253;  // exponents: all that is computed with stays a normal float
    unsigned exponent = ((largest + 0x7ffffu) >> 23) + 1;
    exponent = exponent < kLow ? kLow : exponent;
    const bool finite = exponent <= kHigh;
    scale = __uint_as_float(finite ? exponent << 23 : 0x7fc00000u);
    inverse = finite ? __uint_as_float((254 - exponent) << 23) : 0.0F;
  }
};

// A pack of codes, n of them.
BOOST_EXT_DEVICE Coming coming_codes(const std::uint8_t* p, Count n, bool aligned) {
  const auto* from = reinterpret_cast<const char*>(p);
  if (n.together) return coming_together(from, DType::u8, 2);
  if (aligned && n == kPack) return coming_aligned(from, DType::u8, 2);
  Coming coming{{}, DType::u8, Way::alone, nullptr};
#pragma unroll
  for (int j = 0; j < kPack; ++j) coming.raw.word[j / 4] |= (j < n ? unsigned{p[j]} : 0u) << (j % 4 * 8);
  return coming;
}
BOOST_EXT_DEVICE void store_codes(std::uint8_t* p, Count n, bool aligned, uint2 codes) {
  if (n.together || (aligned && n == kPack)) {
    return store_raw(reinterpret_cast<char*>(p), 2, n.together, n.aligned, {{codes.x, codes.y}});
  }
#pragma unroll
  for (int j = 0; j < kPack; ++j) {
    if (j < n) p[j] = static_cast<std::uint8_t>((j < 4 ? codes.x : codes.y) >> (j % 4 * 8));
  }
}

// One state of a tensor.
struct Stored {
  void* data;
  float* scales;
  DType type;
};

constexpr int kScaleWord = 2;
// n elements from i on, zeros behind them: of codes these, and their scale.
BOOST_EXT_DEVICE Coming coming_state(const Stored& s, std::int64_t i, Count n, bool aligned) {
  if (s.type != DType::u8) return coming_pack(s.data, s.type, i, n, aligned);
  Coming coming = coming_codes(static_cast<const std::uint8_t*>(s.data) + i, n, aligned);
  coming.raw.word[kScaleWord] = __float_as_uint(n > 0 ? s.scales[i / kStateBlock] : 0.0F);
  return coming;
}
template <bool kSigned> BOOST_EXT_DEVICE Pack state_of(const Coming& coming, int n) {
  if (coming.type != DType::u8) return coming.get();
  const Raw codes = coming.packs(2);
  const float scale = __uint_as_float(coming.raw.word[kScaleWord]);
  Pack x;
#pragma unroll
  for (int j = 0; j < kPack; ++j) {
    const unsigned code = codes.word[j / 4] >> (j % 4 * 8) & 0xffu;
    x.v[j] = j < n ? Codes<kSigned>::decode(code, scale) : 0.0F;
  }
  return x;
}

// And back; x becomes what has been stored. All threads of a warp come here together, also those with n = 0: theirs is
// one block of codes.
template <bool kSigned>
BOOST_EXT_DEVICE void store_state(const Stored& s, std::int64_t i, Count n, bool aligned, const Random& random, int k,
                                  Pack& x) {
  if (s.type == DType::f32) return store_pack(s.data, s.type, i, n, aligned, x);
  if (s.type == DType::bf16) {
#pragma unroll
    for (int j = 0; j < kPack; ++j) x.v[j] = rounded_at_random(x.v[j], sixteen_bits(random.bits[j], k));
    return store_upper_halves(s.data, i, n, aligned, x);
  }
  unsigned largest = 0;
#pragma unroll
  for (int j = 0; j < kPack; ++j) {
    x.v[j] = j < n ? x.v[j] : 0.0F;
    const unsigned bits = __float_as_uint(x.v[j]) & 0x7fffffffu;
    largest = bits > largest ? bits : largest;
  }
  const BlockScale by(__reduce_max_sync(kWholeWarp, largest));
  unsigned low = 0, high = 0;
#pragma unroll
  for (int j = 0; j < kPack; ++j) {
    const unsigned code =
        by.inverse != 0 ? Codes<kSigned>::encode(x.v[j], by.inverse, sixteen_bits(random.bits[j], k)) : 0;
    (j < 4 ? low : high) |= code << (j % 4 * 8);
    x.v[j] = Codes<kSigned>::decode(code, by.scale);
  }
  if (n == 0) return;
  store_codes(static_cast<std::uint8_t*>(s.data) + i, n, aligned, make_uint2(low, high));
  if (i % kStateBlock == 0) s.scales[i / kStateBlock] = by.scale;
}

}  // namespace boost_ext::cuda
