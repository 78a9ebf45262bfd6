// What threads call to meet one another: barriers of the block, shuffles, votes and reductions of the warp.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "block.h"

// Each takes along where it is called, for messages.
#define BOOST_EXT_WHERE const char *file = __builtin_FILE(), int line = __builtin_LINE()

namespace boost_ext::cuda::emulator {

constexpr unsigned kWholeWarp = 32;

template <class T>
T shuffle(const char* function, WarpOp op, unsigned mask, T value, int argument, int width, Where w) {
  static_assert(std::is_arithmetic_v<T> && (sizeof(T) == 4 || sizeof(T) == 8), "CUDA shuffles numbers of 4 or 8 bytes");
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = warp(function, {op, mask, bits, static_cast<unsigned>(argument), static_cast<unsigned>(width)}, w);
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline unsigned vote(const char* function, WarpOp op, unsigned mask, unsigned value, Where w) {
  return static_cast<unsigned>(warp(function, {op, mask, value, 0, kWholeWarp}, w));
}

}  // namespace boost_ext::cuda::emulator

inline void __syncthreads(BOOST_EXT_WHERE) { boost_ext::cuda::emulator::barrier("__syncthreads", false, {file, line}); }
inline int __syncthreads_count(int predicate, BOOST_EXT_WHERE) {
  return static_cast<int>(boost_ext::cuda::emulator::barrier("__syncthreads_count", predicate != 0, {file, line}));
}
inline int __syncthreads_or(int predicate, BOOST_EXT_WHERE) {
  return boost_ext::cuda::emulator::barrier("__syncthreads_or", predicate != 0, {file, line}) != 0 ? 1 : 0;
}
inline int __syncthreads_and(int predicate, BOOST_EXT_WHERE) {
  return boost_ext::cuda::emulator::barrier("__syncthreads_and", predicate == 0, {file, line}) == 0 ? 1 : 0;
}
inline void __syncwarp(unsigned mask = ~0U, BOOST_EXT_WHERE) {
  boost_ext::cuda::emulator::vote("__syncwarp", boost_ext::cuda::emulator::WarpOp::sync, mask, 0, {file, line});
}

#define BOOST_EXT_EMULATED_SHUFFLE(name, op, Argument)                                                          \
  template <class T> T name(unsigned mask, T value, Argument argument, int width = warpSize, BOOST_EXT_WHERE) { \
    return boost_ext::cuda::emulator::shuffle(#name, boost_ext::cuda::emulator::WarpOp::op, mask, value,        \
                                              static_cast<int>(argument), width, {file, line});                 \
  }
BOOST_EXT_EMULATED_SHUFFLE(__shfl_sync, index, int)
BOOST_EXT_EMULATED_SHUFFLE(__shfl_xor_sync, exclusive_or, int)
BOOST_EXT_EMULATED_SHUFFLE(__shfl_down_sync, down, unsigned)
BOOST_EXT_EMULATED_SHUFFLE(__shfl_up_sync, up, unsigned)
#undef BOOST_EXT_EMULATED_SHUFFLE

#define BOOST_EXT_EMULATED_VOTE(T, name, op, V)                                                               \
  inline T name(unsigned mask, V value, BOOST_EXT_WHERE) {                                                    \
    return static_cast<T>(boost_ext::cuda::emulator::vote(#name, boost_ext::cuda::emulator::WarpOp::op, mask, \
                                                          static_cast<unsigned>(value), {file, line}));       \
  }
BOOST_EXT_EMULATED_VOTE(unsigned, __ballot_sync, ballot, int)
BOOST_EXT_EMULATED_VOTE(int, __any_sync, any, int)
BOOST_EXT_EMULATED_VOTE(int, __all_sync, all, int)
BOOST_EXT_EMULATED_VOTE(unsigned, __reduce_add_sync, add, unsigned)
BOOST_EXT_EMULATED_VOTE(unsigned, __reduce_min_sync, min, unsigned)
BOOST_EXT_EMULATED_VOTE(unsigned, __reduce_max_sync, max, unsigned)
BOOST_EXT_EMULATED_VOTE(unsigned, __reduce_and_sync, bit_and, unsigned)
BOOST_EXT_EMULATED_VOTE(unsigned, __reduce_or_sync, bit_or, unsigned)
#undef BOOST_EXT_EMULATED_VOTE
#undef BOOST_EXT_WHERE
