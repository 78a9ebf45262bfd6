#include "ops/dropout.h"

#include "cpu/parallel.h"
#include "ops/philox.h"

namespace boost_ext::cpu::BOOST_EXT_ISA {
namespace {

constexpr std::int64_t kBlock = 16384;
constexpr int kGroup = 4 * kLanes;  // elements whose words are made at once

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

// The words of 2 * kWidth elements: of kWide blocks of four, in such an order of lanes that they come out in the order
// of the elements.
BOOST_EXT_INLINE void words(const DropoutKey& key, std::uint64_t block, Vu* out) {
  Vq at;
  for (int i = 0; i < kWide; ++i) at[i] = block + static_cast<std::uint64_t>(i / 2 + (i % 2) * (kWide / 2));
  Vq w0 = at, w1 = at >> 32, w2 = Vq{} + key.draw, w3 = Vq{} + key.stream;
  auto k0 = static_cast<std::uint32_t>(key.seed), k1 = static_cast<std::uint32_t>(key.seed >> 32);
#pragma GCC unroll 10
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const Vq a = product(w0, kPhiloxFactor0), b = product(w2, kPhiloxFactor1);
    w0 = (b >> 32) ^ w1 ^ std::uint64_t{k0};
    w1 = b;
    w2 = (a >> 32) ^ w3 ^ std::uint64_t{k1};
    w3 = a;
    k0 += kPhiloxStep0;
    k1 += kPhiloxStep1;
  }
  const Vq low = (w0 & 0xffffffffu) | (w1 << 32), high = (w2 & 0xffffffffu) | (w3 << 32);
  out[0] = reinterpret_cast<Vu>(even_lanes(low, high));
  out[1] = reinterpret_cast<Vu>(odd_lanes(low, high));
}

// Share and key by value: what a loop stores could lie in a reference, and all that follows from them would be computed
// in each round.
template <class T>
BOOST_EXT_INLINE void each_its_own(const T* x, T* y, Block at, const DropoutShare share, const DropoutKey key) {
  const auto group_of_words = [&](std::int64_t i, Vu* word) BOOST_EXT_INLINE_LAMBDA {
    const auto block = static_cast<std::uint64_t>(at.begin + i) / 4;
#pragma GCC unroll 8
    for (int w = 0; w < kGroup / kWidth; w += 2)
      words(key, block + static_cast<std::uint64_t>(w * kWide / 2), word + w);
  };
  const auto sixteen = [&](auto io, std::int64_t i, const Vu* word) BOOST_EXT_INLINE_LAMBDA {
    F v = share.scale * io.load(x + i);
    BOOST_EXT_EACH(p) v.v[p] = word[p] <= share.most ? Vf{} : v.v[p];
    io.store(y + i, v);
  };
  Vu word[kGroup / kWidth];
  std::int64_t i = 0;
  for (; i + kGroup <= at.count; i += kGroup) {
    group_of_words(i, word);
#pragma GCC unroll 4
    for (int group = 0; group < 4; ++group) sixteen(Full{}, i + group * kLanes, word + group * kParts);
  }
  if (i == at.count) return;
  group_of_words(i, word);
  for (int group = 0; i < at.count; ++group, i += kLanes) {
    const std::int64_t left = at.count - i;
    if (left >= kLanes)
      sixteen(Full{}, i, word + group * kParts);
    else
      sixteen(Part{left}, i, word + group * kParts);
  }
}

template <class T>
void in_rows(const T* x, T* y, Block at, const DropoutShare& share, const DropoutKey& key, std::int64_t shared) {
  for (std::int64_t i = 0, n; i < at.count; i += n) {
    const std::int64_t row = (at.begin + i) / shared;
    n = (row + 1) * shared - at.begin - i;
    if (n > at.count - i) n = at.count - i;
    std::uint32_t word[4];
    philox(key, static_cast<std::uint64_t>(row) / 4, word);
    if (word[row % 4] <= share.most)
      std::memset(static_cast<void*>(y + i), 0, static_cast<std::size_t>(n) * sizeof(T));
    else
      sweep(n, [&](auto io, std::int64_t j, auto)
                   BOOST_EXT_INLINE_LAMBDA { io.store(y + i + j, share.scale * io.load(x + i + j)); });
  }
}

}  // namespace

void dropout(const Context& context, const View& x, const DropoutShare& share, const DropoutKey& key,
             std::int64_t shared, const View& out) {
  Blocks(Tensors(&out, 1), kBlock)
      .run(
          context.threads,
          [&](Block at) {
            typed(out, [&](auto* p) BOOST_EXT_INLINE_LAMBDA {
              auto* y = p + at.begin;
              const auto* from = static_cast<decltype(p)>(x.data) + at.begin;
              if (!share.any)
                std::memmove(static_cast<void*>(y), from, static_cast<std::size_t>(at.count) * sizeof *y);
              else if (shared > 1)
                in_rows(from, y, at, share, key, shared);
              else
                each_its_own(from, y, at, share, key);
            });
          },
          3);
}

}  // namespace boost_ext::cpu::BOOST_EXT_ISA
