#include "ops/tensor_statistics.h"

#include "cpu/parallel.h"

namespace boost_ext::cpu::BOOST_EXT_ISA {
namespace {

constexpr std::int64_t kBlock = 16384;

// Counts, one more in each lane where it holds.
BOOST_EXT_INLINE I plus_where_equal(I counts, I a, std::int32_t to) {
  BOOST_EXT_EACH(i) counts.v[i] -= a.v[i] == to;
  return counts;
}
BOOST_EXT_INLINE I plus_where_above(I counts, I a, std::int32_t bound) {
  BOOST_EXT_EACH(i) counts.v[i] -= a.v[i] > bound;
  return counts;
}
BOOST_EXT_INLINE F finite_or_zero(F a) {
  const I bits = magnitude_bits(a);
  BOOST_EXT_EACH(i) a.v[i] = bits.v[i] < kInfBits ? a.v[i] : Vf{};
  return a;
}

BOOST_EXT_INLINE std::int64_t total(I counts) {
  std::int32_t lane[kLanes];
  std::memcpy(lane, &counts, sizeof lane);
  std::int64_t sum = 0;
  for (const std::int32_t count : lane) sum += count;
  return sum;
}

// A block as if it were finite. Lanes behind the end read as zeros, which are no elements.
template <class T> BOOST_EXT_INLINE std::int32_t look(const T* p, std::int64_t count, Statistics& s) {
  I largest{}, zeros{};
  D squares[2] = {};  // four would not fit into the registers of AVX2 beside the rest
  sweep(count, [&](auto io, std::int64_t i, auto u) BOOST_EXT_INLINE_LAMBDA {
    const F x = io.load(p + i);
    const I bits = magnitude_bits(x);
    largest = max(largest, bits);
    zeros = plus_where_equal(zeros, bits, 0);
    const D wide = widen(x);
    D& of = squares[decltype(u)::value % 2];
    of = add_product(of, wide, wide);
  });
  s.zeros = total(zeros) - (kLanes - count % kLanes) % kLanes;
  s.squares = sum(squares[0] + squares[1]);
  return max_lane(largest);
}

// The rare block with inf or nan, which is still in the cache.
template <class T> void look_at_special(const T* p, Block at, Statistics& s) {
  I largest{}, inf{}, nan{};
  D squares[2] = {};
  sweep(at.count, [&](auto io, std::int64_t i, auto u) BOOST_EXT_INLINE_LAMBDA {
    const F x = finite_or_zero(io.load(p + i));
    const I bits = magnitude_bits(io.load(p + i));
    largest = max(largest, magnitude_bits(x));
    inf = plus_where_equal(inf, bits, kInfBits);
    nan = plus_where_above(nan, bits, kInfBits);
    const D wide = widen(x);
    D& of = squares[decltype(u)::value % 2];
    of = add_product(of, wide, wide);
  });
  s.inf = total(inf);
  s.nan = total(nan);
  s.squares = sum(squares[0] + squares[1]);
  const std::int32_t bits = max_lane(largest);
  std::memcpy(&s.largest, &bits, sizeof bits);
  for (std::int64_t i = 0; i < at.count && s.first < 0; i += kLanes) {
    const std::int64_t n = at.count - i < kLanes ? at.count - i : kLanes;
    std::int32_t lane[kLanes];
    const I here = magnitude_bits(Part{n}.load(p + i));
    std::memcpy(lane, &here, sizeof lane);
    for (std::int64_t l = n - 1; l >= 0; --l) {
      if (lane[l] >= kInfBits) s.first = at.begin + i + l;
    }
  }
}

}  // namespace

void tensor_statistics(const Context& context, Tensors tensors, Statistics* per_tensor) {
  Blocks blocks(tensors, kBlock);
  Scratch<Statistics> partial(blocks.count());
  blocks.run(context.threads, [&](Block at) {
    typed(tensors[at.tensor], [&](auto* p) BOOST_EXT_INLINE_LAMBDA {
      Statistics s;
      const std::int32_t largest = look(p + at.begin, at.count, s);
      std::memcpy(&s.largest, &largest, sizeof largest);
      if (largest >= kInfBits) look_at_special(p + at.begin, at, s);
      partial[at.index] = s;
    });
  });
  for (std::int64_t t = 0; t < tensors.count; ++t) {
    Statistics& all = per_tensor[t];
    for (std::int64_t i = blocks.first(t); i < blocks.first(t + 1); ++i) {
      const Statistics& s = partial[i];
      all.inf += s.inf;
      all.nan += s.nan;
      if (all.first < 0) all.first = s.first;
      all.zeros += s.zeros;
      if (s.largest > all.largest) all.largest = s.largest;
      all.squares += s.squares;
    }
  }
}

}  // namespace boost_ext::cpu::BOOST_EXT_ISA
