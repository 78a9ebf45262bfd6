#include "ops/max_pool.h"

#include "cpu/parallel.h"

namespace boost_ext::cpu::BOOST_EXT_ISA {
namespace {

using UnalignedVi __attribute__((vector_size(kWidth * 4), aligned(1), may_alias)) = std::int32_t;

// Of 2 * kWidth floats, one behind the other, those at even places or at odd ones.
template <bool odd> BOOST_EXT_INLINE Vf half(Vf a, Vf b) {
#if defined(__AVX512F__)
  const __m512i first = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
  const __m512i places = odd ? _mm512_add_epi32(first, _mm512_set1_epi32(1)) : first;
  return reinterpret_cast<Vf>(_mm512_permutex2var_ps(reinterpret_cast<__m512>(a), places, reinterpret_cast<__m512>(b)));
#elif defined(__AVX2__)
  const __m256 mixed = _mm256_shuffle_ps(reinterpret_cast<__m256>(a), reinterpret_cast<__m256>(b), odd ? 0xdd : 0x88);
  return reinterpret_cast<Vf>(_mm256_permute4x64_pd(_mm256_castps_pd(mixed), 0xd8));
#elif defined(__x86_64__)
  return reinterpret_cast<Vf>(
      _mm_shuffle_ps(reinterpret_cast<__m128>(a), reinterpret_cast<__m128>(b), odd ? 0xdd : 0x88));
#elif defined(__aarch64__)
  const auto x = reinterpret_cast<float32x4_t>(a), y = reinterpret_cast<float32x4_t>(b);
  return reinterpret_cast<Vf>(odd ? vuzp2q_f32(x, y) : vuzp1q_f32(x, y));
#else
  Vf r;
  for (int i = 0; i < kWidth; ++i) {
    const int place = 2 * i + odd;
    r[i] = place < kWidth ? a[place] : b[place - kWidth];
  }
  return r;
#endif
}

// Element j of sixteen windows, `step` apart. It reads as far as sixteen times `step` from the first window, or j.
template <int step> BOOST_EXT_INLINE F of_windows(const float* p, std::int64_t j, std::int64_t distance) {
  F r;
  if constexpr (step == 1) {
    r = load(p + j);
  } else if constexpr (step == 2) {
    p += j / 2 * 2;
    BOOST_EXT_EACH(i) {
      const Vf a = load_floats(p + 2 * i * kWidth), b = load_floats(p + (2 * i + 1) * kWidth);
      r.v[i] = j % 2 == 0 ? half<false>(a, b) : half<true>(a, b);
    }
  } else {
    float lane[kLanes];
    for (int i = 0; i < kLanes; ++i) lane[i] = p[i * distance + j];
    r = load(lane);
  }
  return r;
}

// Numbers below 256.
BOOST_EXT_INLINE void store_bytes(std::uint8_t* p, I a) {
#if defined(__AVX512F__)
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   _mm512_maskz_cvtepi32_epi8(0xffff, reinterpret_cast<__m512i>(a.v[0])));
#elif defined(__AVX2__)
  const auto x = reinterpret_cast<__m256i>(a.v[0]), y = reinterpret_cast<__m256i>(a.v[1]);
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(x, y), 0xd8);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
#elif defined(__x86_64__)
  const auto* v = reinterpret_cast<const __m128i*>(a.v);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   _mm_packus_epi16(_mm_packs_epi32(v[0], v[1]), _mm_packs_epi32(v[2], v[3])));
#else
  for (int i = 0; i < kLanes; ++i) p[i] = static_cast<std::uint8_t>(a.v[i / kWidth][i % kWidth]);
#endif
}

// A plane with its padding, which can be read beyond its end.
struct Source {
  const float* rows;
  std::int64_t pitch;         // from row to row
  const std::int32_t* first;  // the first place in the windows of a column that is no padding
};

// A plane. Sixteen outputs are written at once also where a row ends: what is too much, the next row or plane writes
// over, among the `left` outputs of this thread.
template <int height, int width, int step>
BOOST_EXT_INLINE void pool_plane(const Pooling& of, const Source& from, std::int64_t left, float* y,
                                 std::uint8_t* places) {
  const std::int64_t kh = height > 0 ? height : of.kh, kw = width > 0 ? width : of.kw, sw = step > 0 ? step : of.sw;
  for (std::int64_t r = 0; r < of.oh; ++r) {
    const std::int64_t above = of.top - r * of.sh;
    const Vi start = static_cast<std::int32_t>(above > 0 ? above * kw : 0) - Vi{};
    for (std::int64_t c = 0; c < of.ow; c += kLanes) {
      const float* p = from.rows + r * of.sh * from.pitch + c * sw;
      F best = of_windows<step>(p, 0, sw);
      I place;
      BOOST_EXT_EACH(i) place.v[i] = start + *reinterpret_cast<const UnalignedVi*>(from.first + c + i * kWidth);
      for (std::int64_t k = 0; k < kh; ++k, p += from.pitch) {
        for (std::int64_t j = k == 0 ? 1 : 0; j < kw; ++j) {
          const F x = of_windows<step>(p, j, sw);
          const Vi here = static_cast<std::int32_t>(k * kw + j) - Vi{};
          BOOST_EXT_EACH(i) {
            const Vi taken = (x.v[i] > best.v[i]) | (x.v[i] != x.v[i]);
            best.v[i] = taken ? x.v[i] : best.v[i];
            place.v[i] = taken ? here : place.v[i];
          }
        }
      }
      const std::int64_t at = r * of.ow + c;
      if (at + kLanes <= left) {
        store(y + at, best);
        store_bytes(places + at, place);
      } else {
        const std::int64_t count = of.ow - c < kLanes ? of.ow - c : kLanes;
        std::uint8_t bytes[kLanes];
        store_bytes(bytes, place);
        Part{count}.store(y + at, best);
        std::memcpy(places + at, bytes, static_cast<std::size_t>(count));
      }
    }
  }
}

constexpr float kLeast = -__builtin_inff();

}  // namespace

void max_pool(const Context& context, const Pooling& of, const float* x, float* y, std::uint8_t* places) {
  const std::int64_t size = of.h * of.w, out = of.oh * of.ow;
  const std::int64_t height = (of.oh - 1) * of.sh + of.kh, width = (of.ow - 1) * of.sw + of.kw;  // of all windows
  const std::int64_t beyond = (kLanes + 1) * of.sw + of.kw;  // what vectors may read behind the last window
  const bool padded = of.top > 0 || of.left > 0 || height > of.h || width > of.w;
  const auto pool = [&](const Source& from, std::int64_t left, float* to, std::uint8_t* to_places) {
    // The windows of most networks, with loops of their own.
    if (of.kh == 2 && of.kw == 2 && of.sw == 2) return pool_plane<2, 2, 2>(of, from, left, to, to_places);
    if (of.kh == 3 && of.kw == 3 && of.sw == 2) return pool_plane<3, 3, 2>(of, from, left, to, to_places);
    if (of.kh == 3 && of.kw == 3 && of.sw == 1) return pool_plane<3, 3, 1>(of, from, left, to, to_places);
    if (of.sw == 2) return pool_plane<0, 0, 2>(of, from, left, to, to_places);
    if (of.sw == 1) return pool_plane<0, 0, 1>(of, from, left, to, to_places);
    pool_plane<0, 0, 0>(of, from, left, to, to_places);
  };
  Scratch<std::int32_t> first(of.ow + kLanes);
  for (std::int64_t c = 0; c < of.ow + kLanes; ++c) {
    const std::int64_t outside = of.left - c * of.sw;
    first[c] = static_cast<std::int32_t>(outside > 0 ? outside : 0);
  }
  const std::int64_t work = of.planes * (size + of.kh * of.kw * out / 4);
  on_threads(context.threads, work, of.planes, [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t wide = width > of.w ? width : of.w;
    // Of planes that are padded, and of those near the end of x.
    const auto is_copied = [&](std::int64_t p) { return padded || (of.planes - 1 - p) * size < beyond; };
    const std::int64_t elements = is_copied(end - 1) ? height * wide + beyond : 0;
    Scratch<float> copy(elements);
    for (std::int64_t i = 0; i < elements; ++i) copy[i] = kLeast;
    for (std::int64_t p = begin; p < end; ++p) {
      const float* plane = x + p * size;
      if (!is_copied(p)) {
        pool({plane, of.w, first.get()}, (end - p) * out, y + p * out, places + p * out);
        continue;
      }
      const std::int64_t rows = height - of.top < of.h ? height - of.top : of.h;
      const std::int64_t columns = wide - of.left < of.w ? wide - of.left : of.w;
      for (std::int64_t r = 0; r < rows; ++r) {
        std::memcpy(copy.get() + (of.top + r) * wide + of.left, plane + r * of.w,
                    static_cast<std::size_t>(columns) * sizeof(float));
      }
      pool({copy.get(), wide, first.get()}, (end - p) * out, y + p * out, places + p * out);
    }
  });
}

void max_pool_gradient(const Context& context, const Pooling& of, const float* dy, const std::uint8_t* places,
                       float* dx) {
  const std::int64_t size = of.h * of.w, out = of.oh * of.ow, window = of.kh * of.kw;
  Scratch<std::int64_t> place(window);  // in the plane, from the first element of the window
  for (std::int64_t k = 0; k < window; ++k) place[k] = k / of.kw * of.w + k % of.kw;
  on_threads(context.threads, of.planes * (size + out), of.planes, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t p = begin; p < end; ++p) {
      float* plane = dx + p * size;
      std::memset(plane, 0, static_cast<std::size_t>(size) * sizeof(float));
      for (std::int64_t r = 0; r < of.oh; ++r) {
        const float* from = dy + p * out + r * of.ow;
        const std::uint8_t* at = places + p * out + r * of.ow;
        const std::int64_t first = (r * of.sh - of.top) * of.w - of.left;
        for (std::int64_t c = 0; c < of.ow; ++c) plane[first + c * of.sw + place[at[c]]] += from[c];
      }
    }
  });
}

}  // namespace boost_ext::cpu::BOOST_EXT_ISA
