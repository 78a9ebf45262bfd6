// Rows of images, and of matrices, which are short and begin anywhere.
#pragma once

#include "cpu/parallel.h"

namespace boost_ext::cpu::BOOST_EXT_ISA {

template <class T> class Zeros : public Scratch<T> {
 public:
  explicit Zeros(std::int64_t n) : Scratch<T>(n) {
    for (std::int64_t i = 0; i < n; ++i) (*this)[i] = 0;
  }
};

// Lest a loop become a call of memmove(), which takes longer than a short row.
#define BOOST_EXT_NO_CALL() __asm__ volatile("" ::: "memory")

BOOST_EXT_INLINE void copy_row(const float* from, std::int64_t n, float* to) {
  std::int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) {
    *reinterpret_cast<UnalignedVf*>(to + i) = load_floats(from + i);
    BOOST_EXT_NO_CALL();
  }
  for (; i + 4 <= n; i += 4) std::memcpy(to + i, from + i, 16);
  for (; i < n; ++i) {
    to[i] = from[i];
    BOOST_EXT_NO_CALL();
  }
}

// Four numbers of each of four rows become four rows of `to`, `stride` apart.
BOOST_EXT_INLINE void transpose_square(const float* a, const float* b, const float* c, const float* d, float* to,
                                       std::int64_t stride) {
  using V4 __attribute__((vector_size(16), aligned(4), may_alias)) = float;
  const auto at = [](const float* p) BOOST_EXT_INLINE_LAMBDA { return *reinterpret_cast<const V4*>(p); };
  const V4 low_ab = __builtin_shufflevector(at(a), at(b), 0, 4, 1, 5),
           high_ab = __builtin_shufflevector(at(a), at(b), 2, 6, 3, 7);
  const V4 low_cd = __builtin_shufflevector(at(c), at(d), 0, 4, 1, 5),
           high_cd = __builtin_shufflevector(at(c), at(d), 2, 6, 3, 7);
  *reinterpret_cast<V4*>(to) = __builtin_shufflevector(low_ab, low_cd, 0, 1, 4, 5);
  *reinterpret_cast<V4*>(to + stride) = __builtin_shufflevector(low_ab, low_cd, 2, 3, 6, 7);
  *reinterpret_cast<V4*>(to + 2 * stride) = __builtin_shufflevector(high_ab, high_cd, 0, 1, 4, 5);
  *reinterpret_cast<V4*>(to + 3 * stride) = __builtin_shufflevector(high_ab, high_cd, 2, 3, 6, 7);
}

// to[c * stride + r] = row(r)[c]: `width` numbers of each of some rows.
template <class Row>
BOOST_EXT_INLINE void turn(Row row, std::int64_t rows, std::int64_t width, float* to, std::int64_t stride) {
  std::int64_t r = 0;
  for (; r + 4 <= rows; r += 4) {
    const float* const four[] = {row(r), row(r + 1), row(r + 2), row(r + 3)};
    std::int64_t c = 0;
    for (; c + 4 <= width; c += 4) {
      transpose_square(four[0] + c, four[1] + c, four[2] + c, four[3] + c, to + c * stride + r, stride);
    }
    for (; c < width; ++c) {
      for (int i = 0; i < 4; ++i) to[c * stride + r + i] = four[i][c];
    }
  }
  for (; r < rows; ++r) {
    for (std::int64_t c = 0; c < width; ++c) to[c * stride + r] = row(r)[c];
  }
}

constexpr std::int64_t kSquare = 32;  // numbers on a side of what is transposed at a time, in the first cache

// to[c * to_stride + r] = from[r * stride + c]. A square is turned in memory of its own, since lines a power of two
// apart drive each other out.
inline void transpose(const float* from, std::int64_t stride, std::int64_t rows, std::int64_t columns, float* to,
                      std::int64_t to_stride) {
  alignas(64) float turned[kSquare * kSquare];
  for (std::int64_t i = 0; i < rows; i += kSquare) {
    const std::int64_t height = smaller(kSquare, rows - i);
    for (std::int64_t j = 0; j < columns; j += kSquare) {
      const std::int64_t width = smaller(kSquare, columns - j);
      const float* const first = from + i * stride + j;
      turn([=](std::int64_t r) BOOST_EXT_INLINE_LAMBDA { return first + r * stride; }, height, width, turned, kSquare);
      for (std::int64_t c = 0; c < width; ++c) { copy_row(turned + c * kSquare, height, to + (j + c) * to_stride + i); }
    }
  }
}

}  // namespace boost_ext::cpu::BOOST_EXT_ISA
