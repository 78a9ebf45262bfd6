#include "ops/dropout.h"

#include "cpu/parallel.h"
#include "cpu/random_words.h"

namespace boost_ext::cpu::BOOST_EXT_ISA {
namespace {

constexpr std::int64_t kBlock = 16384;
constexpr int kGroup = 4 * kLanes;  // elements whose words are made at once

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
