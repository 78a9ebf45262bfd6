// Optimizer state of 8 and 16 bits, to float32 and back, a chunk at a time: what ops/optimizer_step.h says of it.
#pragma once

#include "cpu/simd.h"
#include "ops/optimizer_step.h"

namespace boost_ext::cpu::BOOST_EXT_ISA {

using Vc __attribute__((vector_size(kWidth))) = std::uint8_t;  // kWidth lanes
using UnalignedVc __attribute__((vector_size(kWidth), aligned(1), may_alias)) = std::uint8_t;

struct U {
  Vu v[kParts];
};

// Random bits for sixteen elements: a hash of their indices, so nothing has to be kept, and nobody's order matters.
// The function is lowbias32 of Wellons' "hash prospector".
struct Random {
  std::uint32_t in, out;
  explicit Random(std::uint64_t key)
      : in(static_cast<std::uint32_t>(key)), out(static_cast<std::uint32_t>(key >> 32)) {}
  BOOST_EXT_INLINE U operator()(std::int64_t index) const {
    const auto low = static_cast<std::uint32_t>(index);
    const std::uint32_t high = static_cast<std::uint32_t>(index >> 32) * 0x9e3779b9u;
    U r;
    BOOST_EXT_EACH(p) {
      Vu x{};
      for (int i = 0; i < kWidth; ++i) x[i] = static_cast<std::uint32_t>(p * kWidth + i);
      x = (x + low) ^ (in ^ high);
      x = (x ^ (x >> 16)) * 0x7feb352du;
      x = (x ^ (x >> 15)) * 0x846ca68bu;
      r.v[p] = x ^ (x >> 16) ^ out;
    }
    return r;
  }
};

// The sixteen bits of state k.
BOOST_EXT_INLINE Vu sixteen_bits(Vu random, int k) { return (random >> (16 * k)) & 0xffffu; }

BOOST_EXT_INLINE void store_rounded_at_random(BFloat* p, F a, U random, int k) {
  BOOST_EXT_EACH(i) {
    const Vu bits = reinterpret_cast<Vu>(a.v[i]);
    const Vu rounded = (bits + sixteen_bits(random.v[i], k)) >> 16;  // away from 0 as often as the bits cut off say
    const Vu quiet = (bits >> 16) | 0x40u;
    store_halves(p + i * kWidth, __builtin_convertvector((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded, Vh));
  }
}

// Codes of one byte: the fourth root of |x| / scale in steps of 1 / kTop, with the sign in the first bit, or without.
template <bool kSigned> struct Codes {
  static constexpr int kTop = kSigned ? 127 : 255;
  static constexpr float kStep = 1.0F / kTop;

  static BOOST_EXT_INLINE Vf fourth(Vf code) {
    const Vf root = code * kStep;
    const Vf square = root * root;
    return square * square;
  }
  static BOOST_EXT_INLINE void decode(const std::uint8_t* codes, float scale, float* out) {
    BOOST_EXT_EACH(i) {
      const Vu code = __builtin_convertvector(*reinterpret_cast<const UnalignedVc*>(codes + i * kWidth), Vu);
      const Vu magnitude = kSigned ? code & 0x7fu : code;
      const Vf x = scale * fourth(__builtin_convertvector(reinterpret_cast<Vi>(magnitude), Vf));
      const Vu sign = kSigned ? (code & 0x80u) << 24 : Vu{};
      *reinterpret_cast<UnalignedVf*>(out + i * kWidth) = reinterpret_cast<Vf>(reinterpret_cast<Vu>(x) | sign);
    }
  }
  // Up to the next code as often as y lies nearer to it, so that the mean is kept.
  static BOOST_EXT_INLINE void encode(F x, float inverse, U random, int k, std::uint8_t* codes) {
    BOOST_EXT_EACH(i) {
      const Vu bits = reinterpret_cast<Vu>(x.v[i]);
      const Vf y = inverse * reinterpret_cast<Vf>(bits & 0x7fffffffu);
      const Vf root = static_cast<float>(kTop) * square_root(square_root(y));
      Vi code = __builtin_convertvector(root, Vi);
      code = code < kTop ? code : kTop - 1 - Vi{};
      const Vf low = fourth(__builtin_convertvector(code, Vf));
      const Vf high = fourth(__builtin_convertvector(code + 1, Vf));
      const Vf chance = 0x1p-16F * __builtin_convertvector(reinterpret_cast<Vi>(sixteen_bits(random.v[i], k)), Vf);
      code -= y - low > chance * (high - low);
      // A second moment that became 0 would leave eps alone to divide the first one.
      if (!kSigned) code = (y > 0) & (code == 0) ? 1 - Vi{} : code;
      const Vu sign = kSigned ? (bits >> 24) & 0x80u : Vu{};
      *reinterpret_cast<UnalignedVc*>(codes + i * kWidth) =
          __builtin_convertvector(reinterpret_cast<Vu>(code) | sign, Vc);
    }
  }
};

inline float float_of(std::uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

// The scale of a block: the power of two at or above all magnitudes. A power, so that the codes of a block mean the
// same in most steps, and what stays as it is stays where it is. nan beyond 2^126, also where there is inf or nan.
struct BlockScale {
  float scale, inverse;
  explicit BlockScale(std::int32_t largest) {
    constexpr std::uint32_t kLow = 40, kHigh = 253;  // exponents: all that is computed with stays a normal float
    std::uint32_t exponent = (static_cast<std::uint32_t>(largest) + 0x7fffffu) >> 23;
    if (exponent < kLow) exponent = kLow;
    const bool finite = exponent <= kHigh;
    scale = float_of(finite ? exponent << 23 : 0x7fc00000u);
    inverse = finite ? float_of((254 - exponent) << 23) : 0;
  }
};

template <bool kSigned> void decode_blocks(const std::uint8_t* codes, const float* scales, std::int64_t n, float* out) {
  for (std::int64_t begin = 0; begin < n; begin += kStateBlock) {
    const std::int64_t count = n - begin < kStateBlock ? n - begin : kStateBlock;
    const float scale = scales[begin / kStateBlock];
    std::int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) Codes<kSigned>::decode(codes + begin + i, scale, out + begin + i);
    if (i == count) continue;
    std::uint8_t last[kLanes] = {};
    float wide[kLanes];
    std::memcpy(last, codes + begin + i, static_cast<std::size_t>(count - i));
    Codes<kSigned>::decode(last, scale, wide);
    std::memcpy(out + begin + i, wide, static_cast<std::size_t>(count - i) * sizeof(float));
  }
}

// `index`: of the first element within its tensor, for its random bits.
template <bool kSigned>
void encode_blocks(const float* in, std::int64_t n, Random random, std::int64_t index, int k, std::uint8_t* codes,
                   float* scales) {
  for (std::int64_t begin = 0; begin < n; begin += kStateBlock) {
    const std::int64_t count = n - begin < kStateBlock ? n - begin : kStateBlock;
    I largest{};
    for (std::int64_t i = 0; i + kLanes <= count; i += kLanes) {
      largest = max(largest, magnitude_bits(load(in + begin + i)));
    }
    const std::int64_t whole = count - count % kLanes;
    const Part rest{count - whole};
    if (whole < count) largest = max(largest, magnitude_bits(rest.load(in + begin + whole)));
    const BlockScale by(max_lane(largest));
    scales[begin / kStateBlock] = by.scale;
    if (by.inverse == 0) {
      std::memset(codes + begin, 0, static_cast<std::size_t>(count));
      continue;
    }
    for (std::int64_t i = 0; i < whole; i += kLanes) {
      Codes<kSigned>::encode(load(in + begin + i), by.inverse, random(index + begin + i), k, codes + begin + i);
    }
    if (whole == count) continue;
    std::uint8_t last[kLanes];
    Codes<kSigned>::encode(rest.load(in + begin + whole), by.inverse, random(index + begin + whole), k, last);
    std::memcpy(codes + begin + whole, last, static_cast<std::size_t>(count - whole));
  }
}

// State k of n elements of tensor t, from `begin` on, as float32: where it lies, or decoded in `scratch`. With codes,
// `begin` is the start of a block.
inline float* open_state(const OptimizerStep& s, int k, std::int64_t t, std::int64_t begin, std::int64_t n,
                         float* scratch) {
  const View& v = s.state[k][static_cast<std::size_t>(t)];
  if (v.dtype == DType::f32) return static_cast<float*>(v.data) + begin;
  if (v.dtype == DType::bf16) {
    const BFloat* in = static_cast<const BFloat*>(v.data) + begin;
    std::int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) store(scratch + i, load(in + i));
    if (i < n) Part{n - i}.store(scratch + i, Part{n - i}.load(in + i));
    return scratch;
  }
  const std::uint8_t* codes = static_cast<const std::uint8_t*>(v.data) + begin;
  const float* scales = static_cast<const float*>(s.scales[k][static_cast<std::size_t>(t)].data) + begin / kStateBlock;
  (k == kNonNegative ? decode_blocks<false> : decode_blocks<true>)(codes, scales, n, scratch);
  return scratch;
}

// And back, where it does not lie in `floats` itself.
inline void close_state(const OptimizerStep& s, int k, std::int64_t t, std::int64_t begin, std::int64_t n,
                        const float* floats) {
  const View& v = s.state[k][static_cast<std::size_t>(t)];
  if (v.dtype == DType::f32) return;
  const Random random(s.keys[t]);
  if (v.dtype == DType::bf16) {
    BFloat* out = static_cast<BFloat*>(v.data) + begin;
    std::int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) store_rounded_at_random(out + i, load(floats + i), random(begin + i), k);
    if (i == n) return;
    BFloat last[kLanes];
    store_rounded_at_random(last, Part{n - i}.load(floats + i), random(begin + i), k);
    std::memcpy(out + i, last, static_cast<std::size_t>(n - i) * sizeof(BFloat));
    return;
  }
  std::uint8_t* codes = static_cast<std::uint8_t*>(v.data) + begin;
  float* scales = static_cast<float*>(s.scales[k][static_cast<std::size_t>(t)].data) + begin / kStateBlock;
  (k == kNonNegative ? encode_blocks<false> : encode_blocks<true>)(floats, n, random, begin, k, codes, scales);
}

}  // namespace boost_ext::cpu::BOOST_EXT_ISA
