#include "ops/dropout.h"

#include "cpu/parallel.h"
#include "cpu/random_words.h"

namespace boost_ext::cpu::BOOST_EXT_ISA {
namespace {

constexpr int kSets = 4;  // of counters: 0.73 of the time of two (AMD EPYC, Zen 5, AVX-512), 0.79 with AVX2
constexpr int kGroup = 4 * kWidth * kSets;  // elements whose halves are made at once

// Thirty-two elements: x times the scale where `kept` has all bits, otherwise 0.
template <class T> BOOST_EXT_INLINE void drop(const T* x, T* y, float scale, S kept) {
  F half[2] = {scale * load(x), scale * load(x + kLanes)};
  BOOST_EXT_EACH(p) {
    Vi wide[2];
    widen_mask(kept.v[p], wide);
    for (int i = 0; i < 2; ++i) {
      Vf& v = half[(2 * p + i) / kParts].v[(2 * p + i) % kParts];
      v = reinterpret_cast<Vf>(reinterpret_cast<Vi>(v) & wide[i]);
    }
  }
  store(y, half[0]);
  store(y + kLanes, half[1]);
}
BOOST_EXT_INLINE void drop(const BFloat* x, BFloat* y, float scale, S kept) {
  const S v = load_shorts(x);
  S scaled = to_bfloats(scale * evens(v), scale * odds(v));
  BOOST_EXT_EACH(p) scaled.v[p] &= kept.v[p];
  store_shorts(y, scaled);
}

// Share and key by value: what a loop stores could lie in a reference, and all that follows from them would be computed
// in each round.
template <class T>
BOOST_EXT_INLINE void each_its_own(const T* x, T* y, Block at, const DropoutShare share, const DropoutKey key) {
  // Both sides moved to signed numbers, which all instruction sets compare.
  constexpr auto kSigned = static_cast<std::int16_t>(-0x8000);
  const auto most = static_cast<std::int16_t>((share.dropped - 1) ^ 0x8000u);
  const auto group = [&](const T* from, T* to, std::int64_t i) BOOST_EXT_INLINE_LAMBDA {
    const auto block = static_cast<std::uint64_t>(at.begin + i) / kPhiloxHalves;
    Vs half[2 * kSets];
    halves<kSets>(key, block, half);
#pragma GCC unroll 8
    for (int e = 0; e < kGroup; e += 2 * kLanes) {
      S kept;
      BOOST_EXT_EACH(p) kept.v[p] = (half[e / (2 * kWidth) + p] ^ kSigned) > most;
      drop(from + e, to + e, share.scale, kept);
    }
  };
  std::int64_t i = 0;
  for (; i + kGroup <= at.count; i += kGroup) group(x + i, y + i, i);
  if (i == at.count) return;
  T rest[kGroup] = {};
  const auto bytes = static_cast<std::size_t>(at.count - i) * sizeof(T);
  std::memcpy(rest, x + i, bytes);
  group(rest, rest, i);
  std::memcpy(y + i, rest, bytes);
}

template <class T>
void in_rows(const T* x, T* y, Block at, const DropoutShare& share, const DropoutKey& key, std::int64_t shared) {
  for (std::int64_t i = 0, n; i < at.count; i += n) {
    const std::int64_t row = (at.begin + i) / shared;
    n = (row + 1) * shared - at.begin - i;
    if (n > at.count - i) n = at.count - i;
    std::uint32_t word[4];
    philox(PhiloxRounds(key.seed), key.draw, key.stream, static_cast<std::uint64_t>(row) / kPhiloxHalves, word);
    if (half_of(word, static_cast<int>(row % kPhiloxHalves)) < share.dropped)
      std::memset(static_cast<void*>(y + i), 0, static_cast<std::size_t>(n) * sizeof(T));
    else
      sweep(n, [&](auto io, std::int64_t j, auto)
                   BOOST_EXT_INLINE_LAMBDA { io.store(y + i + j, share.scale * io.load(x + i + j)); });
  }
}

}  // namespace

void dropout(const Context& context, const View& x, const DropoutShare& share, const DropoutKey& key,
             std::int64_t shared, const View& out) {
  Blocks(Tensors(&out, 1))
      .run(
          context.threads,
          [&](Block at) {
            typed(out, [&](auto* p) BOOST_EXT_INLINE_LAMBDA {
              auto* y = p + at.begin;
              const auto* from = static_cast<decltype(p)>(x.data) + at.begin;
              if (share.dropped == 0)
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
