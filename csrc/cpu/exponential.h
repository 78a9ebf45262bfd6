// e^x of sixteen lanes: the same bits on every instruction set, which a library's would not have. And the largest of a
// row, which is taken from its elements before.
#pragma once

#include "cpu/sweep.h"

namespace boost_ext::cpu::BOOST_EXT_ISA {

// Within 1.5 units of the last place for -87.3 <= x <= 88; 0 below, inf above, nan for nan.
BOOST_EXT_INLINE F exponential(F x) {
  constexpr float kLeast = -87.3F, kMost = 88, kMagic = 12582912;  // 1.5 * 2^23: a float of its size has no fraction
  const F low = where_less(x, all(kLeast), all(kLeast), x), within = where_less(all(kMost), low, all(kMost), low);
  F k = 1.44269504F * within + all(kMagic);
  I shift;
  BOOST_EXT_EACH(i) shift.v[i] = reinterpret_cast<Vi>(k.v[i]) << 23;  // what the magic number adds is shifted out
  k = k - all(kMagic);
  const F r = within - 0.693359375F * k + 2.12194440e-4F * k;  // x - k ln 2, in two parts
  // Least largest relative error, by Lawson's weights: 3e-9 before rounding.
  F p = 0.00138144626F * r + all(0.00836878084F);
  p = p * r + all(0.0416683927F);
  p = p * r + all(0.166665196F);
  p = p * r + all(0.49999994F);
  F e = p * r * r + r + all(1);
  BOOST_EXT_EACH(i) e.v[i] = reinterpret_cast<Vf>(reinterpret_cast<Vi>(e.v[i]) + shift.v[i]);
  e = where_less(x, all(kLeast), all(0), e);
  e = where_less(all(kMost), x, all(__builtin_inff()), e);
  return where_equal(x, x, e, x);
}

template <class T> BOOST_EXT_INLINE float largest_of(const T* row, std::int64_t n) {
  const std::int64_t whole = n - n % kLanes;
  F largest = all(-__builtin_inff());
  sweep<Full>(whole,
              [&](auto io, std::int64_t i, auto) BOOST_EXT_INLINE_LAMBDA { largest = max(largest, io.load(row + i)); });
  if (n > whole && whole > 0) {
    largest = max(largest, load(row + n - kLanes));  // some again
  } else {
    for (std::int64_t i = whole; i < n; ++i) largest = max(largest, all(as_float(row + i)));
  }
  float lane[kLanes];
  store(lane, largest);
  float most = lane[0];
  for (int i = 1; i < kLanes; ++i) most = lane[i] > most ? lane[i] : most;
  return most;
}

}  // namespace boost_ext::cpu::BOOST_EXT_ISA
