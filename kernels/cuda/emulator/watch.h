// Shared memory, watched access by access: a read of what no thread of the block has written, and two threads that
// touch the same bytes, one of them writing, without __syncthreads (or, within a warp, __syncwarp) between.
//
// It works for .cu files that GCC or Clang compiles with -fsanitize=thread and that are linked without it: that option
// puts a call before every access, and watch.cpp answers these calls in place of the thread sanitizer. Shuffles and
// votes order no memory. Atomic functions and global memory are not watched.
#pragma once

#include <cstdint>
#include <string>

namespace boost_ext::cuda::emulator {

// Who runs, and when: block.cpp keeps it. An epoch is what lies between two barriers of one block.
struct Clock {
  bool inside = false;           // a thread of a block runs
  unsigned thread = 0;           // its number in the block
  std::uint32_t epoch = 1;       // never the same twice on a thread of the operating system
  std::uint32_t block = 1;       // the first epoch of this block
  std::uint32_t warp_time = 0;   // how many __syncwarp its warp has completed
  std::uint32_t warp_since = 0;  // what that was after the last one of this lane
};
inline thread_local Clock clock_now;

// Ends the launch with a std::logic_error from a place that cannot throw. From inside a kernel; does not return.
void give_up(const std::string& mistake);

}  // namespace boost_ext::cuda::emulator
