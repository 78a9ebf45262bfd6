// Loops over the elements of an array, whole vectors and what is left of them, and sums over such loops.
#pragma once

#include "cpu/simd.h"
#include "ops/read_ahead.h"

namespace boost_ext::cpu::BOOST_EXT_ISA {

// How a loop body touches memory: sixteen elements, or thirty-two shorts, or the `count` that are left (the other lanes
// read as zero).
struct Full {
  template <class T> BOOST_EXT_INLINE F load(const T* p) const { return BOOST_EXT_ISA::load(p); }
  template <class T> BOOST_EXT_INLINE void store(T* p, F a) const { BOOST_EXT_ISA::store(p, a); }
  BOOST_EXT_INLINE F only(F a) const { return a; }
  template <class T> BOOST_EXT_INLINE S load_shorts(const T* p) const { return BOOST_EXT_ISA::load_shorts(p); }
  template <class T> BOOST_EXT_INLINE void store_shorts(T* p, S a) const { BOOST_EXT_ISA::store_shorts(p, a); }
};
// Full, which also asks for what the loop will read some iterations later. Where that does not pay,
// `bytes` is 0 and asks for what is read anyway. One before a loop: its bytes stay in a register. What writes as much
// as it reads gains nothing. The AVX2 loops have no slots to spare for it, nor those of aarch64 registers.
#if defined(__AVX512F__)
struct Ahead : Full {
  std::uintptr_t bytes = read_ahead_bytes;
  template <class T> BOOST_EXT_INLINE void prefetch(const T* p) const {
    const auto ahead = reinterpret_cast<std::uintptr_t>(p) + bytes;
    __builtin_prefetch(reinterpret_cast<const void*>(ahead), 0, 2);  // to the second-level cache
  }
  template <class T> BOOST_EXT_INLINE F load(const T* p) const {
    prefetch(p);
    return Full::load(p);
  }
  template <class T> BOOST_EXT_INLINE S load_shorts(const T* p) const {
    prefetch(p);
    return Full::load_shorts(p);
  }
};
#else
struct Ahead : Full {
  template <class T> BOOST_EXT_INLINE void prefetch(const T*) const {}
};
#endif
struct Part {
  std::int64_t count;
  template <class T> BOOST_EXT_INLINE F load(const T* p) const {
    T all[kLanes] = {};
    std::memcpy(all, p, static_cast<std::size_t>(count) * sizeof(T));
    return BOOST_EXT_ISA::load(all);
  }
  template <class T> BOOST_EXT_INLINE void store(T* p, F a) const {
    T all[kLanes];
    BOOST_EXT_ISA::store(all, a);
    std::memcpy(p, all, static_cast<std::size_t>(count) * sizeof(T));
  }
  // a, with zeros in the lanes beyond the end: for sums.
  BOOST_EXT_INLINE F only(F a) const {
    float lane[kLanes];
    BOOST_EXT_ISA::store(lane, a);
    return load(lane);
  }
  template <class T> BOOST_EXT_INLINE S load_shorts(const T* p) const {
    T all[2 * kLanes] = {};
    std::memcpy(all, p, static_cast<std::size_t>(count) * sizeof(T));
    return BOOST_EXT_ISA::load_shorts(all);
  }
  template <class T> BOOST_EXT_INLINE void store_shorts(T* p, S a) const {
    T all[2 * kLanes];
    BOOST_EXT_ISA::store_shorts(all, a);
    std::memcpy(p, all, static_cast<std::size_t>(count) * sizeof(T));
  }
};
template <int N> struct At {
  static constexpr int value = N;
};

// body(io, i, At<u>) for every sixteen elements of 0..n; u is the accumulator to use, out of four, so that sums do not
// wait for the adder.
constexpr int kAccumulators = 4;
template <class Whole = Ahead, class Body> BOOST_EXT_INLINE void sweep(std::int64_t n, Body&& body) {
  const Whole whole{};
  std::int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    body(whole, i, At<0>{});
    body(whole, i + kLanes, At<1>{});
    body(whole, i + 2 * kLanes, At<2>{});
    body(whole, i + 3 * kLanes, At<3>{});
  }
  for (; i + kLanes <= n; i += kLanes) body(whole, i, At<0>{});
  if (i < n) body(Part{n - i}, i, At<0>{});
}

// The sum over i of term(io, i), in float64.
template <class Whole = Ahead, class Term> BOOST_EXT_INLINE double sum_of(std::int64_t n, Term term) {
  D sums[kAccumulators] = {};
  sweep<Whole>(n, [&](auto io, std::int64_t i, auto u) BOOST_EXT_INLINE_LAMBDA {
    D& acc = sums[decltype(u)::value];
    acc = acc + widen(term(io, i));
  });
  return sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

// body(io, i, At<u>) for every thirty-two elements of 0..n; u is 1 for those that are left, whose copying would keep
// the accumulator of the loop in memory.
template <class Body> BOOST_EXT_INLINE void sweep_shorts(std::int64_t n, Body&& body) {
  const Ahead whole{};
  std::int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) body(whole, i, At<0>{});
  if (i < n) body(Part{n - i}, i, At<1>{});
}

// fn(T*) with the pointer in its storage type. The op has made sure that there is one.
template <class Fn> BOOST_EXT_INLINE void typed(const View& v, Fn&& fn) {
  switch (v.dtype) {
    case DType::f16:
      return fn(static_cast<Half*>(v.data));
    case DType::bf16:
      return fn(static_cast<BFloat*>(v.data));
    default:
      return fn(static_cast<float*>(v.data));
  }
}

}  // namespace boost_ext::cpu::BOOST_EXT_ISA
