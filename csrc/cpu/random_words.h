// The words of Philox (ops/philox.h), as many blocks at a time as a vector has lanes for.
#pragma once

#include "cpu/simd.h"
#include "ops/dropout.h"
#include "ops/philox.h"

namespace boost_ext::cpu::BOOST_EXT_ISA {

// Numbers of 64 bits, of which the low halves count: so a product keeps both of its halves where they are needed.
using Vq __attribute__((vector_size(kWidth * 4))) = std::uint64_t;
constexpr int kWide = kWidth / 2;

#if defined(__AVX512F__)
BOOST_EXT_INLINE Vq product(Vq a, std::uint32_t factor) {
  return reinterpret_cast<Vq>(_mm512_mul_epu32(reinterpret_cast<__m512i>(a), _mm512_set1_epi64(factor)));
}
BOOST_EXT_INLINE Vq even_lanes(Vq a, Vq b) {
  return reinterpret_cast<Vq>(_mm512_unpacklo_epi64(reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
}
BOOST_EXT_INLINE Vq odd_lanes(Vq a, Vq b) {
  return reinterpret_cast<Vq>(_mm512_unpackhi_epi64(reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
}
#elif defined(__AVX2__)
BOOST_EXT_INLINE Vq product(Vq a, std::uint32_t factor) {
  return reinterpret_cast<Vq>(_mm256_mul_epu32(reinterpret_cast<__m256i>(a), _mm256_set1_epi64x(factor)));
}
BOOST_EXT_INLINE Vq even_lanes(Vq a, Vq b) {
  return reinterpret_cast<Vq>(_mm256_unpacklo_epi64(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
}
BOOST_EXT_INLINE Vq odd_lanes(Vq a, Vq b) {
  return reinterpret_cast<Vq>(_mm256_unpackhi_epi64(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
}
#elif defined(__aarch64__)
BOOST_EXT_INLINE Vq product(Vq a, std::uint32_t factor) {
  return reinterpret_cast<Vq>(vmull_u32(vmovn_u64(reinterpret_cast<uint64x2_t>(a)), vdup_n_u32(factor)));
}
BOOST_EXT_INLINE Vq even_lanes(Vq a, Vq b) {
  return reinterpret_cast<Vq>(vzip1q_u64(reinterpret_cast<uint64x2_t>(a), reinterpret_cast<uint64x2_t>(b)));
}
BOOST_EXT_INLINE Vq odd_lanes(Vq a, Vq b) {
  return reinterpret_cast<Vq>(vzip2q_u64(reinterpret_cast<uint64x2_t>(a), reinterpret_cast<uint64x2_t>(b)));
}
#else
BOOST_EXT_INLINE Vq product(Vq a, std::uint32_t factor) {
#if defined(__x86_64__)
  return reinterpret_cast<Vq>(_mm_mul_epu32(reinterpret_cast<__m128i>(a), _mm_set1_epi64x(factor)));
#else
  return (a & 0xffffffffu) * factor;
#endif
}
BOOST_EXT_INLINE Vq even_lanes(Vq a, Vq b) { return Vq{a[0], b[0]}; }
BOOST_EXT_INLINE Vq odd_lanes(Vq a, Vq b) { return Vq{a[1], b[1]}; }
#endif

// The words of kSets times kWide blocks of four, in such an order of lanes that their halves come out in the order of
// the elements: kSets times 4 * kWidth of them. A set waits for its own products, so that several at once take little
// longer than one.
template <int kSets> BOOST_EXT_INLINE void halves(const DropoutKey& key, std::uint64_t block, Vs* out) {
  Vq w0[kSets], w1[kSets], w2[kSets], w3[kSets];
  BOOST_EXT_EACH_OF(kSets, s) {
    Vq at;
    for (int i = 0; i < kWide; ++i)
      at[i] = block + static_cast<std::uint64_t>(s * kWide + i / 2 + (i % 2) * (kWide / 2));
    w0[s] = at, w1[s] = at >> 32, w2[s] = Vq{} + key.draw, w3[s] = Vq{} + key.stream;
  }
  auto k0 = static_cast<std::uint32_t>(key.seed), k1 = static_cast<std::uint32_t>(key.seed >> 32);
#pragma GCC unroll 10
  for (int round = 0; round < kPhiloxRounds; ++round) {
    BOOST_EXT_EACH_OF(kSets, s) {
      const Vq a = product(w0[s], kPhiloxFactor0), b = product(w2[s], kPhiloxFactor1);
      w0[s] = (b >> 32) ^ w1[s] ^ std::uint64_t{k0};
      w1[s] = b;
      w2[s] = (a >> 32) ^ w3[s] ^ std::uint64_t{k1};
      w3[s] = a;
    }
    k0 += kPhiloxStep0;
    k1 += kPhiloxStep1;
  }
  BOOST_EXT_EACH_OF(kSets, s) {
    const Vq first = (w0[s] & 0xffffffffu) | (w1[s] << 32), second = (w2[s] & 0xffffffffu) | (w3[s] << 32);
    out[2 * s] = reinterpret_cast<Vs>(even_lanes(first, second));
    out[2 * s + 1] = reinterpret_cast<Vs>(odd_lanes(first, second));
  }
}

}  // namespace boost_ext::cpu::BOOST_EXT_ISA
