// Optimizer state of 8 and 16 bits, to float32 and back, a chunk at a time: what ops/optimizer_step.h says of it.
#pragma once

#include "cpu/chunks.h"
#include "cpu/sweep.h"
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

// Random bits for the elements of a tensor: a hash of their indices, so nothing has to be kept, and nobody's order
// matters. The function is lowbias32 of Wellons' "hash prospector".
class RandomBits {
 public:
  RandomBits(std::uint64_t key, std::int64_t begin)
      : in_(static_cast<std::uint32_t>(key) ^ (static_cast<std::uint32_t>(begin >> 32) * 0x9e3779b9u)),
        last_(static_cast<std::uint32_t>(key >> 32)) {
    std::uint32_t lane[kWidth];
    for (int i = 0; i < kWidth; ++i) lane[i] = static_cast<std::uint32_t>(begin) + static_cast<std::uint32_t>(i);
    std::memcpy(&lane_, lane, sizeof lane_);
  }
  BOOST_EXT_INLINE void skip(std::int64_t n) { lane_ += static_cast<std::uint32_t>(n); }
  // Of the next sixteen elements.
  BOOST_EXT_INLINE U operator()() const {
    U random;
    BOOST_EXT_EACH(p) {
      Vu x = (lane_ + static_cast<std::uint32_t>(p * kWidth)) ^ in_;
      x = (x ^ (x >> 16)) * 0x7feb352du;
      x = (x ^ (x >> 15)) * 0x846ca68bu;
      random.v[p] = x ^ (x >> 16) ^ last_;
    }
    return random;
  }

 private:
  Vu lane_{};
  std::uint32_t in_, last_;
};

// The sixteen bits of state k.
BOOST_EXT_INLINE Vu sixteen_bits(Vu random, int k) { return k == 1 ? random >> 16 : random & 0xffffu; }

// Away from 0 as often as the bits cut off say.
BOOST_EXT_INLINE void store_rounded_at_random(BFloat* p, F a, const U& random, int k) {
  BOOST_EXT_EACH(i) {
    const Vu rounded = reinterpret_cast<Vu>(a.v[i]) + sixteen_bits(random.v[i], k);
    store_halves(p + i * kWidth, upper_halves(a.v[i], rounded));
  }
}

// Of numbers below 2^31. By hand, since GCC 12 makes compares and masks of what it knows of one of the two.
BOOST_EXT_INLINE Vu max_of(Vu a, Vu b) {
#if defined(__AVX512F__)
  return reinterpret_cast<Vu>(_mm512_max_epu32(reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
#else
  return reinterpret_cast<Vi>(a) > reinterpret_cast<Vi>(b) ? a : b;
#endif
}
BOOST_EXT_INLINE Vu min_of(Vu a, Vu b) {
#if defined(__AVX512F__)
  return reinterpret_cast<Vu>(_mm512_min_epu32(reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
#else
  return reinterpret_cast<Vi>(a) < reinterpret_cast<Vi>(b) ? a : b;
#endif
}

// Codes of one byte, with the sign in the first bit, or without. The bits of a float are its logarithm, linear between
// powers of two; so bits times four are those of its fourth power, nearly, and that is what a code stands for.
template <bool kSigned> struct Codes {
  static constexpr std::uint32_t kOne = kSigned ? 134 : 135;  // the exponent of the code of scale: 128 or 256
  static constexpr std::uint32_t kShift = (4 * kOne - 127) << 21;

  static BOOST_EXT_INLINE F decode(const std::uint8_t* codes, float scale) {
    F x;
    BOOST_EXT_EACH(i) {
      const Vu code = load_bytes(codes + i * kWidth);
      const Vi magnitude = reinterpret_cast<Vi>(kSigned ? code & 0x7fu : code);
      const Vu root = reinterpret_cast<Vu>(__builtin_convertvector(magnitude, Vf));
      const Vu bits = (max_of(root, kShift - Vu{}) - kShift) << 2;  // 0 for code 0
      const Vf y = scale * reinterpret_cast<Vf>(bits);
      const Vu sign = kSigned ? (code << 24) & 0x80000000u : Vu{};
      x.v[i] = reinterpret_cast<Vf>(reinterpret_cast<Vu>(y) | sign);
    }
    return x;
  }
  // Up to the next code as often as y lies nearer to it, so that the mean is kept. x is no nan, and not negative if
  // codes have no sign.
  static BOOST_EXT_INLINE void encode(F x, float inverse, const U& random, int k, std::uint8_t* codes) {
    BOOST_EXT_EACH(i) {
      const Vu bits = reinterpret_cast<Vu>(x.v[i]);
      const Vf y = inverse * reinterpret_cast<Vf>(kSigned ? bits & 0x7fffffffu : bits);
      const Vf root = reinterpret_cast<Vf>((reinterpret_cast<Vu>(y) >> 2) + kShift);
      constexpr float k128 = 128;  // whose last bit is 2^-16
      const Vf chance = reinterpret_cast<Vf>(sixteen_bits(random.v[i], k) | 0x43000000u) - k128;
      Vu code = reinterpret_cast<Vu>(__builtin_convertvector(root + chance, Vi));
      // A second moment that became 0 would leave eps alone to divide the first one.
      if (!kSigned) code = max_of(code, min_of(reinterpret_cast<Vu>(y), 1u - Vu{}));
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

// Asks for the memory of the next chunk while this one is encoded: a pause in which nothing else is read.
struct NextChunk {
  std::uintptr_t data;
  std::int64_t item;
  NextChunk(const View& v, std::int64_t begin)
      : data(reinterpret_cast<std::uintptr_t>(v.data) + static_cast<std::uintptr_t>(begin * item_size(v.dtype))),
        item(item_size(v.dtype)) {}
  BOOST_EXT_INLINE void fetch(std::int64_t i) const {
    __builtin_prefetch(reinterpret_cast<const void*>(data + static_cast<std::uintptr_t>((kChunk + i) * item)), 1);
  }
};

// How all states of a tensor are stored, if they are alike.
enum class Storage { floats, halves, codes, any };
inline Storage storage_of(const OptimizerStep& s, std::int64_t t) {
  bool floats = true, halves = true, codes = true;
  for (int k = 0; k < s.states; ++k) {
    const DType type = s.state[k][static_cast<std::size_t>(t)].dtype;
    floats = floats && type == DType::f32;
    halves = halves && type == DType::bf16;
    codes = codes && type == DType::u8;
  }
  return floats ? Storage::floats : halves ? Storage::halves : codes ? Storage::codes : Storage::any;
}

// State k of a chunk of a tensor. Codes begin at the start of a block, and what is stored waits in `floats` until
// encode(), since a block has one scale.
template <Storage kStorage> class State {
 public:
  State() = default;
  State(const OptimizerStep& s, int k, std::int64_t t, std::int64_t begin, float* floats) : floats_(floats) {
    const View& v = s.state[k][static_cast<std::size_t>(t)];
    type_ = v.dtype;
    data_ = static_cast<char*>(v.data) + begin * item_size(v.dtype);
    if (is(DType::u8))
      scales_ = static_cast<float*>(s.scales[k][static_cast<std::size_t>(t)].data) + begin / kStateBlock;
  }
  BOOST_EXT_INLINE bool is(DType type) const {
    if (kStorage == Storage::any) return type_ == type;
    return type == (kStorage == Storage::floats ? DType::f32 : kStorage == Storage::halves ? DType::bf16 : DType::u8);
  }

  // The next elements are of the block that begins with the i-th one.
  BOOST_EXT_INLINE void begin_block(std::int64_t i) {
    if (!is(DType::u8)) return;
    scale_ = scales_[i / kStateBlock];
    largest_ = {};
  }
  // Of sixteen elements, from the i-th one on; 0 in lanes behind the last one.
  template <class Io> BOOST_EXT_INLINE F load(Io io, std::int64_t i, int k) const {
    if (is(DType::f32)) return io.load(static_cast<const float*>(data_) + i);
    if (is(DType::bf16)) return io.load(static_cast<const BFloat*>(data_) + i);
    return decoded(io, static_cast<const std::uint8_t*>(data_) + i, k);
  }
  template <class Io> BOOST_EXT_INLINE void store(Io io, std::int64_t i, int k, F x, const U& random) {
    if (is(DType::f32)) return io.store(static_cast<float*>(data_) + i, x);
    if (is(DType::bf16)) return store_rounded(io, static_cast<BFloat*>(data_) + i, k, x, random);
    io.store(floats_ + i, x);
    largest_ = max(largest_, magnitude_bits(io.only(x)));
  }
  BOOST_EXT_INLINE void end_block(std::int64_t i) {
    if (!is(DType::u8)) return;
    const BlockScale by(max_lane(largest_));
    scales_[i / kStateBlock] = by.scale;
    inverse_[i / kStateBlock] = by.inverse;
  }

  BOOST_EXT_INLINE float inverse(std::int64_t i) const { return inverse_[i / kStateBlock]; }
  // What waits, of sixteen elements.
  BOOST_EXT_INLINE void encode(Full, std::int64_t i, int k, float inverse, const U& random) const {
    if (is(DType::u8)) encode_to(static_cast<std::uint8_t*>(data_) + i, i, k, inverse, random);
  }
  BOOST_EXT_INLINE void encode(Part part, std::int64_t i, int k, float inverse, const U& random) const {
    if (!is(DType::u8)) return;
    std::uint8_t all[kLanes];
    encode_to(all, i, k, inverse, random);
    std::memcpy(static_cast<std::uint8_t*>(data_) + i, all, static_cast<std::size_t>(part.count));
  }
  // n codes from the i-th one on, in a block with inf or nan.
  void clear(std::int64_t i, std::int64_t n) const {
    if (is(DType::u8)) std::memset(static_cast<std::uint8_t*>(data_) + i, 0, static_cast<std::size_t>(n));
  }

 private:
  BOOST_EXT_INLINE F decoded(Full, const std::uint8_t* codes, int k) const {
    return k == kNonNegative ? Codes<false>::decode(codes, scale_) : Codes<true>::decode(codes, scale_);
  }
  BOOST_EXT_INLINE F decoded(Part part, const std::uint8_t* codes, int k) const {
    std::uint8_t all[kLanes] = {};
    std::memcpy(all, codes, static_cast<std::size_t>(part.count));
    return part.only(decoded(Full{}, all, k));
  }
  static BOOST_EXT_INLINE void store_rounded(Full, BFloat* p, int k, F x, const U& random) {
    store_rounded_at_random(p, x, random, k);
  }
  static BOOST_EXT_INLINE void store_rounded(Part part, BFloat* p, int k, F x, const U& random) {
    BFloat all[kLanes];
    store_rounded_at_random(all, x, random, k);
    std::memcpy(p, all, static_cast<std::size_t>(part.count) * sizeof(BFloat));
  }
  BOOST_EXT_INLINE void encode_to(std::uint8_t* codes, std::int64_t i, int k, float inverse, const U& random) const {
    const F x = BOOST_EXT_ISA::load(floats_ + i);
    k == kNonNegative ? Codes<false>::encode(x, inverse, random, k, codes)
                      : Codes<true>::encode(x, inverse, random, k, codes);
  }

  DType type_ = DType::f32;
  void* data_ = nullptr;
  float* scales_ = nullptr;
  float* floats_ = nullptr;
  float scale_ = 0, inverse_[kChunk / kStateBlock] = {};
  I largest_{};
};

}  // namespace boost_ext::cpu::BOOST_EXT_ISA
