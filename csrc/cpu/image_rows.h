// Rows of images, which are short and begin anywhere.
#pragma once

#include "cpu/parallel.h"

namespace boost_ext::cpu::BOOST_EXT_ISA {

// At the start of a cache line, so that vectors lie in one each.
template <class T> class Zeros {
 public:
  explicit Zeros(std::int64_t n) : memory_(n + kLine / static_cast<std::int64_t>(sizeof(T))) {
    const auto at = reinterpret_cast<std::uintptr_t>(memory_.get());
    first_ = memory_.get() + (kLine - at % kLine) % kLine / sizeof(T);
    for (std::int64_t i = 0; i < n; ++i) first_[i] = 0;
  }
  T& operator[](std::int64_t i) { return first_[i]; }
  T* get() { return first_; }

 private:
  static constexpr std::int64_t kLine = 64;
  Scratch<T> memory_;
  T* first_;
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

}  // namespace boost_ext::cpu::BOOST_EXT_ISA
