#include "ops/tensor_statistics.h"

#include "cpu/parallel.h"
#include "cpu/sums_of_products.h"

namespace boost_ext::cpu::BOOST_EXT_ISA {
namespace {

constexpr std::int64_t kBlock = 16384;

// Counts, one more in each lane where it holds.
BOOST_EXT_INLINE I plus_where_equal(I counts, I a, std::int32_t to) {
  BOOST_EXT_EACH(i) counts.v[i] -= a.v[i] == to;
  return counts;
}
BOOST_EXT_INLINE S plus_where_zero(S counts, S a) {
  BOOST_EXT_EACH(i) counts.v[i] -= a.v[i] == 0;
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

template <class Lane, class Lanes> BOOST_EXT_INLINE std::int64_t total(const Lanes& counts) {
  Lane lane[sizeof counts / sizeof(Lane)];
  std::memcpy(lane, &counts, sizeof lane);
  std::int64_t sum = 0;
  for (const Lane count : lane) sum += count;
  return sum;
}
BOOST_EXT_INLINE std::int64_t total(I counts) { return total<std::int32_t>(counts); }
BOOST_EXT_INLINE std::int64_t total(S counts) { return total<std::int16_t>(counts); }

// A block as if it were finite: the bits of the largest magnitude. Lanes behind the end read as zeros, which are no
// elements.
BOOST_EXT_INLINE std::int32_t look(const float* p, std::int64_t count, Statistics& s) {
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

// Sixteen bits are compared and counted as they lie: a lane counts to kBlock / 32 at most.
template <class T> BOOST_EXT_INLINE std::int32_t look(const T* p, std::int64_t count, Statistics& s) {
  S largest{}, zeros{};
  D squares{};
  quads(p, p, count, [&](const T* at, const T*) BOOST_EXT_INLINE_LAMBDA {
    const Quad x = load_quad(at);
    squares = squares + widen(product(x, x));
    for (int half = 0; half < 2; ++half) {
      const S bits = magnitude_bits(load_shorts(at + half * 2 * kLanes));
      largest = max(largest, bits);
      zeros = plus_where_zero(zeros, bits);
    }
  });
  s.zeros = total(zeros) - (kQuad - count % kQuad) % kQuad;
  s.squares = sum(squares);
  if (s.zeros < count && !exact_in_floats(s.squares)) s.squares = wide_sum_of_squares(p, count);
  T all[kLanes] = {{max_lane(largest)}};
  return max_lane(magnitude_bits(load(all)));
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
