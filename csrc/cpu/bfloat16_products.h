// Products of float32 matrices whose factors are rounded to bfloat16, where the CPU multiplies that (AVX512-BF16): two
// products a lane and instruction, twice as many as of float32. A word of 32 bits holds two neighbours of a sum, so
// that panels and the rows of a left factor are those of products.h with half as many words. The instruction adds in
// float32 and takes subnormal numbers for zero.
#pragma once

#include "cpu/products.h"

#if defined(__AVX512F__)
namespace boost_ext::cpu::BOOST_EXT_ISA {

#define BOOST_EXT_BFLOAT16 __attribute__((target("avx512bf16")))

constexpr std::int64_t words_of(std::int64_t count) { return (count + 1) / 2; }

// The first n of sixteen lanes.
inline __mmask16 first_lanes(std::int64_t n) {
  return n >= 16 ? __mmask16{0xffff} : n <= 0 ? __mmask16{0} : static_cast<__mmask16>((1 << n) - 1);
}

// The words of n numbers side by side, in whole vectors of words. `words` may be where the numbers are.
BOOST_EXT_BFLOAT16 inline void narrow_line(const float* from, std::int64_t n, float* words) {
  for (std::int64_t i = 0; i < n; i += 32) {
    const __m512 low = _mm512_maskz_loadu_ps(first_lanes(n - i), from + i);
    const __m512 high = _mm512_maskz_loadu_ps(first_lanes(n - i - 16), from + i + 16);
    const __m512bh both = _mm512_cvtne2ps_pbh(high, low);
    std::memcpy(words + i / 2, &both, sizeof both);
  }
}

// The words of n numbers each in two lines, or in one beside zeros, in whole vectors of words.
BOOST_EXT_BFLOAT16 inline void narrow_pair(const float* low, const float* high, std::int64_t n, float* words) {
  alignas(64) static constexpr std::uint16_t kOrder[] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                         8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512i order = _mm512_load_si512(kOrder);
  for (std::int64_t i = 0; i < n; i += 16) {
    const __mmask16 lanes = first_lanes(n - i);
    const __m512 second = high != nullptr ? _mm512_maskz_loadu_ps(lanes, high + i) : _mm512_setzero_ps();
    const __m512bh both = _mm512_cvtne2ps_pbh(second, _mm512_maskz_loadu_ps(lanes, low + i));
    _mm512_storeu_si512(words + i, _mm512_permutexvar_epi16(order, (__m512i)both));
  }
}

// multiply_tile<kSlab, 1>() of `words` of both.
BOOST_EXT_BFLOAT16 inline void multiply_narrow_tile(const float* a, const float* b, std::int64_t words,
                                                    Tile<float>& tile) {
  __m512 sums[kTileRows][kTileVectors];
  BOOST_EXT_EACH_ROW(m) BOOST_EXT_EACH_VECTOR(v) sums[m][v] = _mm512_setzero_ps();
  for (std::int64_t k = 0; k < words; ++k, ++a, b += kTileColumns<float>) {
    __m512bh right[kTileVectors];
    BOOST_EXT_EACH_VECTOR(v) right[v] = (__m512bh)_mm512_loadu_ps(b + v * 16);
    BOOST_EXT_EACH_ROW(m) {
      const __m512bh left = (__m512bh)_mm512_set1_ps(a[m * kSlab]);
      BOOST_EXT_EACH_VECTOR(v) sums[m][v] = _mm512_dpbf16_ps(sums[m][v], left, right[v]);
    }
  }
  BOOST_EXT_EACH_ROW(m) BOOST_EXT_EACH_VECTOR(v) tile[m][v] = sums[m][v];
}

}  // namespace boost_ext::cpu::BOOST_EXT_ISA
#endif
