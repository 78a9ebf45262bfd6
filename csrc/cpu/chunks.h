// A chunk of a tensor as float32, whatever it is stored as, and back: for the optimizers.
#pragma once

#include "cpu/sweep.h"

namespace boost_ext::cpu::BOOST_EXT_ISA {

constexpr std::int64_t kChunk = 1024;  // what is converted at a time: half the first cache for weights and gradients

// sweep() without its four accumulators: for bodies that wait for memory, roots and quotients, and are long.
template <class Whole = Ahead, class Body> BOOST_EXT_INLINE void sixteens(std::int64_t n, Body&& body) {
  const Whole whole{};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) body(whole, i);
  if (i < n) body(Part{n - i}, i);
}

inline bool is_half(const View& v) { return v.dtype == DType::f16 || v.dtype == DType::bf16; }

// A weight that is no longer what its master rounds to was set by somebody else, and the master follows.
template <class T> void follow(float* master, const T* narrow, std::int64_t n) {
  sixteens(n, [&](auto io, std::int64_t i) BOOST_EXT_INLINE_LAMBDA {
    const F kept = io.load(master + i);
    T rounded[kLanes];
    store(rounded, kept);
    const F weight = io.load(narrow + i);
    io.store(master + i, where_equal(load(rounded), weight, kept, weight));
  });
}

template <class From, class To> void convert(const From* from, To* to, std::int64_t n) {
  sixteens(n, [&](auto io, std::int64_t i) BOOST_EXT_INLINE_LAMBDA { io.store(to + i, io.load(from + i)); });
}

// Elements as float32: where they lie, or converted in `scratch`, which has room for kChunk. So rules are compiled for
// float32 only.
inline float* as_floats(const View& v, std::int64_t begin, std::int64_t n, float* scratch) {
  if (!is_half(v)) return static_cast<float*>(v.data) + begin;
  typed(v, [&](auto* p) { convert(p + begin, scratch, n); });
  return scratch;
}

// Asks for elements that a loop will come to, where their rows are too short for the hardware to see what follows.
BOOST_EXT_INLINE void fetch(const View& v, std::int64_t begin, std::int64_t n) {
  constexpr std::int64_t kLine = 64;
  const std::int64_t item = item_size(v.dtype);
  const char* const at = static_cast<const char*>(v.data) + begin * item;
  for (std::int64_t byte = 0; byte < n * item; byte += kLine) __builtin_prefetch(at + byte);
}

}  // namespace boost_ext::cpu::BOOST_EXT_ISA
