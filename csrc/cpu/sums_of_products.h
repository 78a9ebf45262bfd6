// Sums of squares and of products. float32 is multiplied and added in float64. The product of two float16 or of two
// bfloat16 is exact in float32; four of them are added there, with three roundings, before they go to float64, whose
// conversions and additions would be most of the work.
#pragma once

#include "cpu/sweep.h"

namespace boost_ext::cpu::BOOST_EXT_ISA {

constexpr int kQuad = 4 * kLanes;

struct Quad {
  F v[4];
};
template <class T> BOOST_EXT_INLINE void prefetch_quad(Ahead io, const T* p) {
  io.prefetch(p);
  io.prefetch(p + 2 * kLanes);
}
BOOST_EXT_INLINE Quad load_quad(const Half* p) {
  return {{load(p), load(p + kLanes), load(p + 2 * kLanes), load(p + 3 * kLanes)}};
}
BOOST_EXT_INLINE Quad load_quad(const BFloat* p) {
  const S low = load_shorts(p), high = load_shorts(p + 2 * kLanes);
  return {{evens(low), odds(low), evens(high), odds(high)}};
}
BOOST_EXT_INLINE F product(const Quad& a, const Quad& b) {
  F s = a.v[0] * b.v[0];
  for (int i = 1; i < 4; ++i) s = add_product(s, a.v[i], b.v[i]);
  return s;
}

// body(in a, in b) for every sixty-four elements of 0..n; those that are left are copied, with zeros behind them.
template <class T, class Body> BOOST_EXT_INLINE void quads(const T* a, const T* b, std::int64_t n, Body&& body) {
  const Ahead io{};
  std::int64_t i = 0;
  for (; i + kQuad <= n; i += kQuad) {
    prefetch_quad(io, a + i);
    if (b != a) prefetch_quad(io, b + i);
    body(a + i, b + i);
  }
  if (i == n) return;
  T left[2][kQuad] = {};
  std::memcpy(left[0], a + i, static_cast<std::size_t>(n - i) * sizeof(T));
  std::memcpy(left[1], b + i, static_cast<std::size_t>(n - i) * sizeof(T));
  body(left[0], left[1]);
}

// Whether the squares of bfloat16 have neither overflown in float32, nor vanished beside what is there.
inline bool exact_in_floats(double squares) { return squares >= 0x1p-80 && squares <= 0x1p127; }

template <class T> BOOST_EXT_INLINE double wide_sum_of_squares(const T* p, std::int64_t n) {
  D sums[kAccumulators] = {};
  sweep(n, [&](auto io, std::int64_t i, auto u) BOOST_EXT_INLINE_LAMBDA {
    const D x = widen(io.load(p + i));
    D& acc = sums[decltype(u)::value];
    acc = add_product(acc, x, x);
  });
  return sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
}
inline double sum_of_squares(const float* p, std::int64_t n) { return wide_sum_of_squares(p, n); }
template <class T> double sum_of_squares(const T* p, std::int64_t n) {
  D squares{};
  quads(p, p, n, [&](const T* at, const T*) BOOST_EXT_INLINE_LAMBDA {
    const Quad x = load_quad(at);
    squares = squares + widen(product(x, x));
  });
  const double total = sum(squares);
  return exact_in_floats(total) ? total : wide_sum_of_squares(p, n);
}

// Of two lists of n elements: the products of both, and the squares of each.
struct Dots {
  double ab, aa, bb;
};
template <class T> BOOST_EXT_INLINE Dots wide_dots(const T* a, const T* b, std::int64_t n) {
  D ab[2] = {}, aa[2] = {}, bb[2] = {};
  sweep(n, [&](auto io, std::int64_t i, auto u) BOOST_EXT_INLINE_LAMBDA {
    constexpr int half = decltype(u)::value % 2;
    const D x = widen(io.load(a + i));
    const D y = widen(io.load(b + i));
    ab[half] = add_product(ab[half], x, y);
    aa[half] = add_product(aa[half], x, x);
    bb[half] = add_product(bb[half], y, y);
  });
  return {sum(ab[0] + ab[1]), sum(aa[0] + aa[1]), sum(bb[0] + bb[1])};
}
inline Dots dots(const float* a, const float* b, std::int64_t n) { return wide_dots(a, b, n); }
template <class T> Dots dots(const T* a, const T* b, std::int64_t n) {
  D ab{}, aa{}, bb{};
  quads(a, b, n, [&](const T* in_a, const T* in_b) BOOST_EXT_INLINE_LAMBDA {
    const Quad x = load_quad(in_a), y = load_quad(in_b);
    ab = ab + widen(product(x, y));
    aa = aa + widen(product(x, x));
    bb = bb + widen(product(y, y));
  });
  const Dots all{sum(ab), sum(aa), sum(bb)};
  return exact_in_floats(all.aa) && exact_in_floats(all.bb) ? all : wide_dots(a, b, n);
}

}  // namespace boost_ext::cpu::BOOST_EXT_ISA
