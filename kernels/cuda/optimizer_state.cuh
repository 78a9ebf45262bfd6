// Optimizer state of 8 and 16 bits, to float32 and back, with the bits of the CPU kernels: ops/optimizer_step.h says
// what they are.
#pragma once

#include "ops/optimizer_step.h"
#include "packs.cuh"

namespace boost_ext::cuda {

static_assert(kStateBlock == kWarp * kPack, "a warp shares a scale");

// Random bits of some elements: a hash of their indices ("lowbias32" of Wellons' hash prospector). Sixteen for each of
// two states, below the first bits of 128: of such a float32 the last bit is 2^-16.
constexpr unsigned k128 = 0x43000000u;
struct Random {
  unsigned hash[kPack], last[2];
  // x ^ (x >> 16) ^ last, a half of it.
  BOOST_EXT_DEVICE unsigned bits(int k, int j) const {
    return k == 0 ? (hash[j] & 0xffffu) ^ (hash[j] >> 16) ^ last[0] : (hash[j] >> 16) ^ last[1];
  }
};
class Hash {
 public:
  // Of elements whose indices differ in the last three bits only: what of the hash they share.
  BOOST_EXT_DEVICE Hash(std::uint64_t key, std::int64_t index) : last_(static_cast<unsigned>(key >> 32)) {
    first_ =
        static_cast<unsigned>(index) ^ static_cast<unsigned>(key) ^ (static_cast<unsigned>(index >> 32) * 0x9e3779b9u);
    first_ ^= first_ >> 16;
  }
  BOOST_EXT_DEVICE void begin(Random& random) const {
    random.last[0] = (last_ & 0xffffu) | k128, random.last[1] = last_ >> 16 | k128;
  }
  // Element j < 8, of which `index` has no bits.
  BOOST_EXT_DEVICE unsigned operator()(unsigned j) const {
    unsigned x = (first_ ^ j) * 0x7feb352du;
    x = (x ^ (x >> 15)) * 0x846ca68bu;
    return x;
  }

 private:
  unsigned first_, last_;
};
// index: a multiple of kPack.
BOOST_EXT_DEVICE Random random_bits(std::uint64_t key, std::int64_t index) {
  static_assert(kPack == 8);
  const Hash hash(key, index);
  Random random;
  hash.begin(random);
#pragma unroll
  for (int j = 0; j < kPack; ++j) random.hash[j] = hash(j);
  return random;
}

// As a bfloat16 is stored, in the upper half of a float32: away from 0 as often as the bits cut off say.
BOOST_EXT_DEVICE float rounded_at_random(float x, unsigned random) {
  const unsigned bits = __float_as_uint(x);
  const bool nan = (bits & 0x7fffffffu) > kInfBits;
  return __uint_as_float((nan ? bits | 0x400000u : bits + (random ^ k128)) & 0xffff0000u);
}

// The bits of a float are its logarithm, linear between powers of two; so bits times four are those of its fourth
// power, nearly, and that is what a code stands for.
template <bool kSigned> struct Codes {
  static constexpr unsigned kOne = kSigned ? 134 : 135;  // the exponent of the code of scale: 128 or 256
  static constexpr unsigned kShift = (4 * kOne - 127) << 21;

  // Code i of four. Of code 0 the bits of the root are below kShift.
  static BOOST_EXT_DEVICE float decode(unsigned codes, int i, float scale) {
    const unsigned magnitudes = kSigned ? codes & 0x7f7f7f7fu : codes;
    const float root = __uint_as_float(__byte_perm(magnitudes, 0x4b000000u, 0x7440 + i)) - 0x1p23F;
    const unsigned bits = __float_as_uint(root) < kShift ? kShift : __float_as_uint(root);
    const float y = scale * __uint_as_float((bits - kShift) << 2);
    if (!kSigned) return y;
    return __uint_as_float(__float_as_uint(y) | (__byte_perm(codes, 0, 0x444 + (i << 12)) & 0x80000000u));
  }
  // Four codes. Up to the next one as often as y lies nearer to it, so that the mean is kept.
  static BOOST_EXT_DEVICE unsigned encode(const float* x, float inverse, const Random& random, int first, int k) {
    unsigned code[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float y = inverse * fabsf(x[j]);
      const float root = __uint_as_float((__float_as_uint(y) >> 2) + kShift);
      const float chance = __uint_as_float(random.bits(k, first + j)) - 128.0F;
      float up = root + chance;
      if (!kSigned) up = fmaxf(up, y > 0 ? 1.0F : 0.0F);  // of a second moment of 0, eps alone would divide the first
      code[j] = __float_as_uint(__fadd_rz(up, 0x1p23F));  // its last byte is the integer below
    }
    const unsigned codes = joined(code, 0x0040);
    if (!kSigned) return codes;
    const unsigned bits[4] = {__float_as_uint(x[0]), __float_as_uint(x[1]), __float_as_uint(x[2]),
                              __float_as_uint(x[3])};
    return codes | (joined(bits, 0x0073) & 0x80808080u);
  }

 private:
  // A byte of each of four words, of two of which `selector` makes the last two bytes.
  static BOOST_EXT_DEVICE unsigned joined(const unsigned (&x)[4], unsigned selector) {
    return __byte_perm(__byte_perm(x[0], x[1], selector), __byte_perm(x[2], x[3], selector), 0x5410);
  }
};

BOOST_EXT_DEVICE Raw upper_halves(const Pack& x) {
  Raw raw{};
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    raw.word[j] = __float_as_uint(x.v[2 * j]) >> 16 | (__float_as_uint(x.v[2 * j + 1]) & 0xffff0000u);
  }
  return raw;
}
BOOST_EXT_DEVICE void store_upper_halves(void* p, std::int64_t i, Count n, bool aligned, const Pack& x) {
  unsigned short* to = static_cast<unsigned short*>(p) + i;
  if (n.together || (aligned && n == kPack)) {
    return store_raw(reinterpret_cast<char*>(to), 4, n.together, n.aligned, upper_halves(x));
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
  bool finite;
  BOOST_EXT_DEVICE explicit BlockScale(unsigned largest) {
    constexpr unsigned kLow = 40, kHigh = 253;  // exponents: all that is computed with stays a normal float
    unsigned exponent = ((largest + 0x7ffffu) >> 23) + 1;
    exponent = exponent < kLow ? kLow : exponent;
    finite = exponent <= kHigh;
    scale = __uint_as_float(finite ? exponent << 23 : 0x7fc00000u);
    inverse = finite ? __uint_as_float((254 - exponent) << 23) : 0.0F;
  }
};

// Of magnitudes; what has codes without a sign has none.
template <bool kSigned> BOOST_EXT_DEVICE unsigned largest_bits(const Pack& x) {
  unsigned largest = 0;
#pragma unroll
  for (int j = 0; j < kPack; ++j) {
    const unsigned bits = __float_as_uint(x.v[j]) & (kSigned ? 0x7fffffffu : 0xffffffffu);
    largest = bits > largest ? bits : largest;
  }
  return largest;
}
template <bool kSigned>
BOOST_EXT_DEVICE uint2 encoded(const Pack& x, const BlockScale& by, const Random& random, int k) {
  const unsigned low = Codes<kSigned>::encode(x.v, by.inverse, random, 0, k);
  const unsigned high = Codes<kSigned>::encode(x.v + 4, by.inverse, random, 4, k);
  return by.finite ? make_uint2(low, high) : make_uint2(0, 0);
}

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
  for (int j = 0; j < kPack; ++j) { x.v[j] = j < n ? Codes<kSigned>::decode(codes.word[j / 4], j % 4, scale) : 0.0F; }
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
    for (int j = 0; j < kPack; ++j) x.v[j] = rounded_at_random(x.v[j], random.bits(k, j));
    return store_upper_halves(s.data, i, n, aligned, x);
  }
#pragma unroll
  for (int j = 0; j < kPack; ++j) x.v[j] = j < n ? x.v[j] : 0.0F;
  const BlockScale by(__reduce_max_sync(kWholeWarp, largest_bits<kSigned>(x)));
  const uint2 codes = encoded<kSigned>(x, by, random, k);
#pragma unroll
  for (int j = 0; j < kPack; ++j) x.v[j] = Codes<kSigned>::decode(j < 4 ? codes.x : codes.y, j % 4, by.scale);
  if (n == 0) return;
  store_codes(static_cast<std::uint8_t*>(s.data) + i, n, aligned, codes);
  if (i % kStateBlock == 0) s.scales[i / kStateBlock] = by.scale;
}

}  // namespace boost_ext::cuda
