// The rows of P that the two projections walk along: floating, or codes with a scale for each 256 columns.
#pragma once

#include "cpu/parallel.h"
#include "ops/pca_project.h"

namespace boost_ext::cpu::BOOST_EXT_ISA {

// By hand, since GCC 12 takes bytes apart one by one.
BOOST_EXT_INLINE Vf from_bytes(const std::int8_t* p) {
#if defined(__AVX512F__)
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return reinterpret_cast<Vf>(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)));
#elif defined(__AVX2__)
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  return reinterpret_cast<Vf>(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)));
#elif defined(__x86_64__)
  std::int32_t four;
  std::memcpy(&four, p, sizeof four);
  const __m128i bytes = _mm_cvtsi32_si128(four), twice = _mm_unpacklo_epi8(bytes, bytes);
  return reinterpret_cast<Vf>(_mm_cvtepi32_ps(_mm_srai_epi32(_mm_unpacklo_epi16(twice, twice), 24)));
#else
  using UnalignedVb __attribute__((vector_size(kWidth), aligned(1), may_alias)) = std::int8_t;
  return __builtin_convertvector(*reinterpret_cast<const UnalignedVb*>(p), Vf);
#endif
}
BOOST_EXT_INLINE F load(const std::int8_t* p) {
  F r;
  BOOST_EXT_EACH(i) r.v[i] = from_bytes(p + i * kWidth);
  return r;
}

template <class T> struct FloatRows {
  const T* p;
  std::int64_t stride;

  BOOST_EXT_INLINE FloatRows at(std::int64_t row, std::int64_t column) const {
    return {p + row * stride + column, stride};
  }
};

template <class T> BOOST_EXT_INLINE FloatRows<T> float_rows(const T* p, std::int64_t stride) { return {p, stride}; }

struct CodeRows {
  const std::int8_t* p;
  std::int64_t stride;
  const float* scale;  // of row 0, all blocks
  std::int64_t blocks;
  std::int64_t column;  // of *p

  BOOST_EXT_INLINE CodeRows at(std::int64_t row, std::int64_t more) const {
    return {p + row * stride + more, stride, scale + row * blocks, blocks, column + more};
  }
};

// fn(rows), from column 0 of row 0 on.
template <class Fn> BOOST_EXT_INLINE void with_rows(const View& P, const float* scale, std::int64_t n, Fn&& fn) {
  if (P.dtype == DType::i8) {
    const std::int64_t blocks = quotient_up(n, kProjectionBlock);
    return fn(CodeRows{static_cast<const std::int8_t*>(P.data), n, scale, blocks, 0});
  }
  typed(P, [&](auto* p) BOOST_EXT_INLINE_LAMBDA { fn(float_rows(p, n)); });
}

// `count` columns of codes, sixteen at a time. inside(b, i, end): those from i to `end` lie in block b.
// across(b, i, cut, left): of the sixteen at i the first `cut` do, and the others in block b + 1, as far as there are
// `left` columns.
template <class Inside, class Across>
BOOST_EXT_INLINE void each_block(std::int64_t column, std::int64_t count, Inside&& inside, Across&& across) {
  for (std::int64_t i = 0; i < count;) {
    const std::int64_t b = (column + i) / kProjectionBlock;
    const std::int64_t rest = (b + 1) * kProjectionBlock - column, end = rest < count ? rest : count;
    const std::int64_t whole = i + (end - i) / kLanes * kLanes;
    inside(b, i, whole);
    i = whole;
    if (i == end) continue;
    across(b, i, end - i, count - i);
    i += kLanes;
  }
}

// Sixteen, or the `left` < 16 that there are.
BOOST_EXT_INLINE F load_left(const float* p, std::int64_t left) { return left < kLanes ? Part{left}.load(p) : load(p); }
BOOST_EXT_INLINE F load_left(const std::int8_t* p, std::int64_t left) {
  if (left >= kLanes) return load(p);
  std::int8_t all[kLanes] = {};
  std::memcpy(all, p, static_cast<std::size_t>(left));
  return load(all);
}

// The scales of sixteen columns of which the first `cut` lie in block b of a row. Of the next block there may be none.
BOOST_EXT_INLINE F scales_across(const float* scale, std::int64_t b, std::int64_t cut, std::int64_t left) {
  F lane;
  for (int i = 0; i < kLanes; ++i) lane.v[i / kWidth][i % kWidth] = static_cast<float>(i);
  return where_less(lane, all(static_cast<float>(cut)), all(scale[b]), all(left > cut ? scale[b + 1] : 0.0F));
}

// Asks for the codes of a block of R rows, `ahead` bytes on.
template <int R> BOOST_EXT_INLINE void prefetch_block(const CodeRows& rows, std::int64_t i, std::int64_t ahead) {
  for (int r = 0; r < R; ++r) {
    const auto at = reinterpret_cast<std::uintptr_t>(rows.p) + static_cast<std::uintptr_t>(r * rows.stride + i + ahead);
    for (int line = 0; line < kProjectionBlock; line += 64) {
      __builtin_prefetch(reinterpret_cast<const void*>(at + static_cast<std::uintptr_t>(line)));
    }
  }
}

}  // namespace boost_ext::cpu::BOOST_EXT_ISA
