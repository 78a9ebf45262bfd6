// Optimizer state of 8 and 16 bits, to float32 and back, a chunk at a time: what ops/optimizer_step.h says of it.
#pragma once

#include "cpu/simd.h"
#include "ops/optimizer_step.h"

namespace boost_ext::cpu::BOOST_EXT_ISA {

// Bytes as integers, and integers below 256 as bytes; by hand, since GCC 12 takes them apart one by one.
#if defined(__AVX512F__)
BOOST_EXT_INLINE Vu load_bytes(const std::uint8_t* p) {
  return reinterpret_cast<Vu>(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
BOOST_EXT_INLINE void store_bytes(std::uint8_t* p, Vu x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(reinterpret_cast<__m512i>(x)));
}
#elif defined(__AVX2__)
BOOST_EXT_INLINE Vu load_bytes(const std::uint8_t* p) {
  return reinterpret_cast<Vu>(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
BOOST_EXT_INLINE void store_bytes(std::uint8_t* p, Vu x) {
  const auto all = reinterpret_cast<__m256i>(x);
  const __m128i shorts = _mm_packus_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packus_epi16(shorts, shorts));
}
#elif defined(__x86_64__)
BOOST_EXT_INLINE Vu load_bytes(const std::uint8_t* p) {
  std::int32_t four;
  std::memcpy(&four, p, sizeof four);
  const __m128i zero = _mm_setzero_si128();
  return reinterpret_cast<Vu>(_mm_unpacklo_epi16(_mm_unpacklo_epi8(_mm_cvtsi32_si128(four), zero), zero));
}
BOOST_EXT_INLINE void store_bytes(std::uint8_t* p, Vu x) {
  const auto all = reinterpret_cast<__m128i>(x);
  const __m128i shorts = _mm_packs_epi32(all, all);
  const std::int32_t four = _mm_cvtsi128_si32(_mm_packus_epi16(shorts, shorts));
  std::memcpy(p, &four, sizeof four);
}
#else
using UnalignedVc __attribute__((vector_size(kWidth), aligned(1), may_alias)) = std::uint8_t;
BOOST_EXT_INLINE Vu load_bytes(const std::uint8_t* p) {
  return __builtin_convertvector(*reinterpret_cast<const UnalignedVc*>(p), Vu);
}
BOOST_EXT_INLINE void store_bytes(std::uint8_t* p, Vu x) {
  *reinterpret_cast<UnalignedVc*>(p) = __builtin_convertvector(x, UnalignedVc);
}
#endif

struct U {
  Vu v[kParts];
};

// Random bits for the elements of a chunk: a hash of their indices, so nothing has to be kept, and nobody's order
// matters. The function is lowbias32 of Wellons' "hash prospector".
BOOST_EXT_INLINE void random_bits(std::uint64_t key, std::int64_t index, std::int64_t n, U* out) {
  const auto low = static_cast<std::uint32_t>(index);
  const std::uint32_t in = static_cast<std::uint32_t>(key) ^ (static_cast<std::uint32_t>(index >> 32) * 0x9e3779b9u);
  const auto last = static_cast<std::uint32_t>(key >> 32);
  Vu lane{};
  for (int i = 0; i < kWidth; ++i) lane[i] = static_cast<std::uint32_t>(i);
  for (std::int64_t i = 0; i < n; i += kLanes) {
    BOOST_EXT_EACH(p) {
      Vu x = (lane + (low + static_cast<std::uint32_t>(i + p * kWidth))) ^ in;
      x = (x ^ (x >> 16)) * 0x7feb352du;
      x = (x ^ (x >> 15)) * 0x846ca68bu;
      out[i / kLanes].v[p] = x ^ (x >> 16) ^ last;
    }
  }
}

// The sixteen bits of state k.
BOOST_EXT_INLINE Vu sixteen_bits(Vu random, int k) { return (random >> (16 * k)) & 0xffffu; }

// Away from 0 as often as the bits cut off say.
BOOST_EXT_INLINE void store_rounded_at_random(BFloat* p, F a, const U& random, int k) {
  BOOST_EXT_EACH(i) {
    const Vu rounded = reinterpret_cast<Vu>(a.v[i]) + sixteen_bits(random.v[i], k);
    store_halves(p + i * kWidth, upper_halves(a.v[i], rounded));
  }
}

// Codes of one byte, with the sign in the first bit, or without. The bits of a float are its logarithm, linear between
// powers of two; so bits times four are those of its fourth power, nearly, and that is what a code stands for.
template <bool kSigned> struct Codes {
  static constexpr std::uint32_t kOne = kSigned ? 134 : 135;  // the exponent of the code of scale: 128 or 256
  static constexpr std::uint32_t kShift = (4 * kOne - 127) << 21;

  static BOOST_EXT_INLINE void decode(const std::uint8_t* codes, float scale, float* out) {
    BOOST_EXT_EACH(i) {
      const Vu code = load_bytes(codes + i * kWidth);
      const Vi magnitude = reinterpret_cast<Vi>(kSigned ? code & 0x7fu : code);
      const Vu root = reinterpret_cast<Vu>(__builtin_convertvector(magnitude, Vf));
      const Vf y = scale * reinterpret_cast<Vf>((root - kShift) << 2);
      const Vu bits = magnitude == 0 ? reinterpret_cast<Vu>(scale * Vf{}) : reinterpret_cast<Vu>(y);
      const Vu sign = kSigned ? (code & 0x80u) << 24 : Vu{};
      *reinterpret_cast<UnalignedVf*>(out + i * kWidth) = reinterpret_cast<Vf>(bits | sign);
    }
  }
  // Up to the next code as often as y lies nearer to it, so that the mean is kept.
  static BOOST_EXT_INLINE void encode(F x, float inverse, const U& random, int k, std::uint8_t* codes) {
    BOOST_EXT_EACH(i) {
      const Vu bits = reinterpret_cast<Vu>(x.v[i]);
      const Vf y = inverse * reinterpret_cast<Vf>(bits & 0x7fffffffu);
      const Vf root = reinterpret_cast<Vf>((reinterpret_cast<Vu>(y) >> 2) + kShift);
      const Vf chance = 0x1p-16F * __builtin_convertvector(reinterpret_cast<Vi>(sixteen_bits(random.v[i], k)), Vf);
      Vu code = reinterpret_cast<Vu>(__builtin_convertvector(root + chance, Vi));
      // A second moment that became 0 would leave eps alone to divide the first one.
      if (!kSigned) code -= reinterpret_cast<Vu>((y > 0) & (code == 0));
      const Vu sign = kSigned ? (bits >> 24) & 0x80u : Vu{};
      store_bytes(codes + i * kWidth, code | sign);
    }
  }
};

inline float float_of(std::uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

// The scale of a block: the smallest power of two of which all magnitudes are at most 1 - 1/32, the largest code. A
// power, so that the codes mean the same in most steps, and what does not change stays where it is. nan where that is
// beyond 2^126, or there is inf or nan.
struct BlockScale {
  float scale, inverse;
  explicit BlockScale(std::int32_t largest) {
    constexpr std::uint32_t kLow = 40, kHigh = 253;  // exponents: all that is computed with stays a normal float
    std::uint32_t exponent = ((static_cast<std::uint32_t>(largest) + 0x7ffffu) >> 23) + 1;
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

template <bool kSigned>
void encode_blocks(const float* in, std::int64_t n, const U* random, int k, std::uint8_t* codes, float* scales) {
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
      Codes<kSigned>::encode(load(in + begin + i), by.inverse, random[(begin + i) / kLanes], k, codes + begin + i);
    }
    if (whole == count) continue;
    std::uint8_t last[kLanes];
    Codes<kSigned>::encode(rest.load(in + begin + whole), by.inverse, random[(begin + whole) / kLanes], k, last);
    std::memcpy(codes + begin + whole, last, static_cast<std::size_t>(count - whole));
  }
}

// Asks for the memory behind `p`: a chunk is read in short bursts, with long pauses in which nobody would.
inline void prefetch_after(const void* p, std::int64_t bytes) {
  const auto end = reinterpret_cast<std::uintptr_t>(p) + static_cast<std::uintptr_t>(bytes);
  for (std::int64_t i = 0; i < bytes; i += 64) {
    __builtin_prefetch(reinterpret_cast<const void*>(end + static_cast<std::uintptr_t>(i)), 1);
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
    prefetch_after(in, n * item_size(v.dtype));
    std::int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) store(scratch + i, load(in + i));
    if (i < n) Part{n - i}.store(scratch + i, Part{n - i}.load(in + i));
    return scratch;
  }
  const std::uint8_t* codes = static_cast<const std::uint8_t*>(v.data) + begin;
  prefetch_after(codes, n);
  const float* scales = static_cast<const float*>(s.scales[k][static_cast<std::size_t>(t)].data) + begin / kStateBlock;
  (k == kNonNegative ? decode_blocks<false> : decode_blocks<true>)(codes, scales, n, scratch);
  return scratch;
}

inline bool is_narrow(const OptimizerStep& s, std::int64_t t) {
  for (int k = 0; k < s.states; ++k) {
    if (s.state[k][static_cast<std::size_t>(t)].dtype != DType::f32) return true;
  }
  return false;
}

// And back, where it does not lie in `floats` itself; `random` from `begin` on.
inline void close_state(const OptimizerStep& s, int k, std::int64_t t, std::int64_t begin, std::int64_t n,
                        const float* floats, const U* random) {
  const View& v = s.state[k][static_cast<std::size_t>(t)];
  if (v.dtype == DType::f32) return;
  if (v.dtype == DType::bf16) {
    BFloat* out = static_cast<BFloat*>(v.data) + begin;
    std::int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) store_rounded_at_random(out + i, load(floats + i), random[i / kLanes], k);
    if (i == n) return;
    BFloat last[kLanes];
    store_rounded_at_random(last, Part{n - i}.load(floats + i), random[i / kLanes], k);
    std::memcpy(out + i, last, static_cast<std::size_t>(n - i) * sizeof(BFloat));
    return;
  }
  std::uint8_t* codes = static_cast<std::uint8_t*>(v.data) + begin;
  float* scales = static_cast<float*>(s.scales[k][static_cast<std::size_t>(t)].data) + begin / kStateBlock;
  (k == kNonNegative ? encode_blocks<false> : encode_blocks<true>)(floats, n, random, k, codes, scales);
}

}  // namespace boost_ext::cpu::BOOST_EXT_ISA
