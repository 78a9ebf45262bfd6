// The inner loop of small matrix products: rows of a times sixteen columns of b.
#pragma once

#include "cpu/parallel.h"

namespace boost_ext::cpu::BOOST_EXT_ISA {

constexpr std::int64_t kTileRows = 4;
// So many products are summed up in float32 before a sum goes into a wider one, or is added to another one.
constexpr std::int64_t kSlab = 128;

inline constexpr std::int64_t padded(std::int64_t n) { return (n + kLanes - 1) / kLanes * kLanes; }

// acc[m] = sum over k of a[m * row + k * step] * b[k * stride ...], sixteen columns of b.
BOOST_EXT_INLINE void multiply_tile(const float* a, std::int64_t row, std::int64_t step, const float* b,
                                    std::int64_t stride, std::int64_t count, F* acc) {
  F s0 = all(0), s1 = all(0), s2 = all(0), s3 = all(0);
  for (std::int64_t k = 0; k < count; ++k) {
    const F column = load(b + k * stride);
    const float* left = a + k * step;
    s0 = s0 + left[0] * column;
    s1 = s1 + left[row] * column;
    s2 = s2 + left[2 * row] * column;
    s3 = s3 + left[3 * row] * column;
  }
  acc[0] = s0, acc[1] = s1, acc[2] = s2, acc[3] = s3;
}

}  // namespace boost_ext::cpu::BOOST_EXT_ISA
