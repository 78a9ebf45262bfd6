// The threads of a block, and where they wait for one another.
//
// A thread runs until it meets a barrier or a function of its warp; which one runs next is random, by the seed and the
// number of the launch. So a kernel that lacks a barrier gives other results from launch to launch. What would hang,
// or is undefined on the device, is a std::logic_error of the launch that names the call, the block and the threads.
// It is stricter than the device in one point: a thread that has ended does not count as having reached a barrier.
#pragma once

#include <cstddef>
#include <cstdint>

#include "vectors.h"

namespace boost_ext::cuda::emulator {

// Where in the source a call stands: taken by the default arguments of what kernels call.
struct Where {
  const char* file;
  int line;
};

// All threads of the block arrive at the same place; the number of those whose predicate is not 0.
unsigned barrier(const char* function, bool predicate, Where where);

// What a warp does when the lanes of a mask have arrived.
enum class WarpOp : std::uint8_t {
  sync,
  index,
  exclusive_or,
  down,
  up,
  ballot,
  any,
  all,
  add,
  min,
  max,
  bit_and,
  bit_or
};

struct WarpCall {
  WarpOp op;
  unsigned mask;
  std::uint64_t value;  // the bits of what this lane brings
  unsigned argument;    // the lane, the distance or the lane mask of a shuffle
  unsigned width;
};

// The bits of what this lane takes away. What a shuffle takes from a lane outside of the mask is undefined on the
// device; here it is all ones: NaN, or -1.
std::uint64_t warp(const char* function, const WarpCall& call, Where where);

// Runs kernel(data) on a grid, block by block in a random order.
void run(dim3 grid, dim3 block, void (*kernel)(void*), void* data);
bool inside_a_kernel();
// One access of a thread to memory of the device, of 8 or 16 bytes: the host's compiler would make several of it.
void access(void* to, const void* from, std::size_t bytes, bool writes);
void fence();  // not inline, since GCC warns about fences where kernels are watched

// The launches from now on run in the orders of this seed.
void set_seed(std::uint64_t seed);

}  // namespace boost_ext::cuda::emulator
