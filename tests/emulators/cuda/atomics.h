// Atomic functions and fences. Threads of a block take turns, but several threads may launch at the same time, hence
// real atomics. Sums of floating-point numbers come in the random order of the threads.
#pragma once

#include "block.h"

namespace boost_ext::cuda::emulator {

template <class T, class F> T modify(T* address, F change) {
  T before, after;
  __atomic_load(address, &before, __ATOMIC_RELAXED);
  do {
    after = change(before);
  } while (!__atomic_compare_exchange(address, &before, &after, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  return before;
}

}  // namespace boost_ext::cuda::emulator

#define BOOST_EXT_EMULATED_ATOMIC(T, name, expression)                                             \
  inline T name(T* address, T value) {                                                             \
    return boost_ext::cuda::emulator::modify(address, [value](T old) -> T { return expression; }); \
  }
#define BOOST_EXT_EMULATED_ATOMICS(T)                                                                       \
  BOOST_EXT_EMULATED_ATOMIC(T, atomicAdd, old + value)                                                      \
  BOOST_EXT_EMULATED_ATOMIC(T, atomicMin, value < old ? value : old)                                        \
  BOOST_EXT_EMULATED_ATOMIC(T, atomicMax, value > old ? value : old)                                        \
  BOOST_EXT_EMULATED_ATOMIC(T, atomicAnd, old& value)                                                       \
  BOOST_EXT_EMULATED_ATOMIC(T, atomicOr, old | value)                                                       \
  BOOST_EXT_EMULATED_ATOMIC(T, atomicXor, old ^ value)                                                      \
  BOOST_EXT_EMULATED_ATOMIC(T, atomicExch, (static_cast<void>(old), value))                                 \
  inline T atomicCAS(T* address, T compare, T value) {                                                      \
    return boost_ext::cuda::emulator::modify(address, [=](T old) { return old == compare ? value : old; }); \
  }
BOOST_EXT_EMULATED_ATOMICS(int)
BOOST_EXT_EMULATED_ATOMICS(unsigned)
BOOST_EXT_EMULATED_ATOMICS(unsigned long long)
BOOST_EXT_EMULATED_ATOMIC(float, atomicAdd, old + value)
BOOST_EXT_EMULATED_ATOMIC(double, atomicAdd, old + value)
BOOST_EXT_EMULATED_ATOMIC(float, atomicExch, (static_cast<void>(old), value))
#undef BOOST_EXT_EMULATED_ATOMICS
#undef BOOST_EXT_EMULATED_ATOMIC

inline void __threadfence_block() { boost_ext::cuda::emulator::fence(); }
inline void __threadfence() { boost_ext::cuda::emulator::fence(); }
inline void __threadfence_system() { boost_ext::cuda::emulator::fence(); }
