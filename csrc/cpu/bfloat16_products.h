// Products of float32 matrices whose factors are rounded to bfloat16, where the CPU multiplies that (AVX512-BF16): two
// products a lane and instruction, twice as many as of float32. A word of 32 bits holds two neighbours of a sum, so
// that panels and the rows of a left factor are those of product_tiles.h with half as many words. The instruction adds
// in float32 and takes subnormal numbers for zero.
#pragma once

#include "cpu/product_tiles.h"

namespace boost_ext::cpu::BOOST_EXT_ISA {

// That hold so many neighbours of a sum.
template <bool kNarrow> constexpr std::int64_t words(std::int64_t count) { return kNarrow ? (count + 1) / 2 : count; }
template <bool kNarrow> constexpr std::int64_t kRowWords = words<kNarrow>(kSlab);  // of a left factor, in one slab

#if defined(__AVX512F__)
constexpr bool kNarrows = true;
#define BOOST_EXT_BFLOAT16 __attribute__((target("avx512bf16")))

// The first n of sixteen lanes.
inline __mmask16 first_lanes(std::int64_t n) {
  return n >= 16 ? __mmask16{0xffff} : n <= 0 ? __mmask16{0} : static_cast<__mmask16>((1 << n) - 1);
}

// Writes and returns the words of n numbers side by side, in whole vectors. They may be where the numbers are.
BOOST_EXT_BFLOAT16 inline float* narrow_line(const float* from, std::int64_t n, float* words) {
  std::int64_t i = 0;
  for (; i + 32 <= n; i += 32) {
    _mm512_storeu_ps(words + i / 2,
                     (__m512)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(from + i + 16), _mm512_loadu_ps(from + i)));
  }
  if (i < n) {
    const __m512 low = _mm512_maskz_loadu_ps(first_lanes(n - i), from + i);
    const __m512 high = _mm512_maskz_loadu_ps(first_lanes(n - i - 16), from + i + 16);
    _mm512_storeu_ps(words + i / 2, (__m512)_mm512_cvtne2ps_pbh(high, low));
  }
  return words;
}

// The same of n numbers each in two lines, or in one beside zeros.
BOOST_EXT_BFLOAT16 inline float* narrow_pair(const float* low, const float* high, std::int64_t n, float* words) {
  alignas(64) static constexpr std::uint16_t kOrder[] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                         8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512i order = _mm512_load_si512(kOrder);
  const auto put = [&](__m512 first, __m512 second, float* to) BOOST_EXT_BFLOAT16 {
    _mm512_storeu_si512(to, _mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh(second, first)));
  };
  const __m512 none = _mm512_setzero_ps();
  std::int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    put(_mm512_loadu_ps(low + i), high != nullptr ? _mm512_loadu_ps(high + i) : none, words + i);
  }
  if (i < n) {
    const __mmask16 lanes = first_lanes(n - i);
    const __m512 second = high != nullptr ? _mm512_maskz_loadu_ps(lanes, high + i) : none;
    put(_mm512_maskz_loadu_ps(lanes, low + i), second, words + i);
  }
  return words;
}

// multiply_tile() of so many words, of which rows of the left factor have kSlab / 2.
BOOST_EXT_BFLOAT16 inline void multiply_narrow_tile(const float* a, const float* b, std::int64_t words,
                                                    Tile<float>& tile) {
  __m512 sums[kTileRows][kTileVectors];
  BOOST_EXT_EACH_OF(kTileRows, m) BOOST_EXT_EACH_OF(kTileVectors, v) sums[m][v] = _mm512_setzero_ps();
  for (std::int64_t k = 0; k < words; ++k, ++a, b += kTileColumns<float>) {
    __m512bh right[kTileVectors];
    BOOST_EXT_EACH_OF(kTileVectors, v) right[v] = (__m512bh)_mm512_loadu_ps(b + v * 16);
    BOOST_EXT_EACH_OF(kTileRows, m) {
      const __m512bh left = (__m512bh)_mm512_set1_ps(a[m * (kSlab / 2)]);
      BOOST_EXT_EACH_OF(kTileVectors, v) sums[m][v] = _mm512_dpbf16_ps(sums[m][v], left, right[v]);
    }
  }
  BOOST_EXT_EACH_OF(kTileRows, m) BOOST_EXT_EACH_OF(kTileVectors, v) tile[m][v] = sums[m][v];
}

#else
constexpr bool kNarrows = false;
inline float* narrow_line(const float*, std::int64_t, float* words) { return words; }
inline float* narrow_pair(const float*, const float*, std::int64_t, float* words) { return words; }
inline void multiply_narrow_tile(const float*, const float*, std::int64_t, Tile<float>&) {}
#endif

// multiply_tile() of a slab, or of its first `count` numbers.
template <bool kNarrow, int kRow = kSlab, int kStep = 1>
BOOST_EXT_TILE void multiply_slab(const float* a, const float* b, std::int64_t count, Tile<float>& tile) {
  if constexpr (kNarrow)
    multiply_narrow_tile(a, b, words<true>(count), tile);
  else
    multiply_tile<kRow, kStep>(a, b, count, tile);
}

// body(is_narrow), a constant: `wanted`, where the CPU multiplies bfloat16.
template <bool kNarrow> struct IsNarrow {
  constexpr operator bool() const { return kNarrow; }
};
template <class Body> void in_precision(bool wanted, Body body) {
  if (kNarrows && wanted)
    body(IsNarrow<kNarrows>{});
  else
    body(IsNarrow<false>{});
}

}  // namespace boost_ext::cpu::BOOST_EXT_ISA
