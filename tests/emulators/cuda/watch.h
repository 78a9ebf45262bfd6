// Shared memory, watched access by access: a read of what no thread of the block has written, and two threads that
// touch the same bytes, one of them writing, without __syncthreads (or, within a warp, __syncwarp) between.
//
// It works for .cu files that GCC or Clang compiles with -fsanitize=thread and that are linked without it: that option
// puts a call before every access, and watch.cpp answers these calls in place of the thread sanitizer. Shuffles and
// votes order no memory. Atomic functions and global memory are not watched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace boost_ext::cuda::emulator {

// Who runs, and when: block.cpp keeps it. An epoch is what lies between two barriers of one block.
struct Clock {
  bool inside = false;           // a thread of a block runs
  unsigned thread = 0;           // its number in the block
  std::uint32_t epoch = 1;       // never the same twice
  std::uint32_t block = 1;       // the first epoch of this block
  std::uint32_t warp_time = 0;   // how many __syncwarp its warp has completed
  std::uint32_t warp_since = 0;  // what that was after the last one of this lane

  // What every access asks first.
  bool counts_sectors = false;
  std::uintptr_t shared = 0;  // where the shared memory of the launching thread begins
  std::size_t shared_bytes = 0;
};
inline Clock clock_now;

// A launch begins on this thread.
void watch_shared_memory();

// Sectors of 32 bytes that the warps touch, in a range of memory: an access of a warp is what its lanes do at the same
// place of the code, reached by the same calls, for as many times. As a device's counters of sectors a request, before
// any cache.
class Sectors {
 public:
  void count(const void* begin, std::size_t bytes);  // from now on; not at all if it is empty
  void note(const void* code, const void* p, std::size_t bytes, bool writes);
  void enter(const void* caller);  // the thread that runs does, a function that is not inlined
  void leave();
  std::int64_t reads() const { return counts_[0]; }
  std::int64_t writes() const { return counts_[1]; }
  void finish();

 private:
  struct Access {
    unsigned warp;
    std::uintptr_t code;
    unsigned time;
    bool writes;
    bool operator<(const Access& o) const {
      return std::tie(warp, code, time, writes) < std::tie(o.warp, o.code, o.time, o.writes);
    }
  };
  std::uintptr_t place_of(const void* code);

  std::uintptr_t begin_ = 0, end_ = 0;
  std::uint32_t block_ = 0;
  std::map<std::pair<unsigned, std::uintptr_t>, unsigned> times_;  // of a thread at a place of the code
  std::map<Access, std::set<std::uintptr_t>> touched_;             // by the block that runs
  std::map<unsigned, std::vector<std::uintptr_t>> calls_;          // of a thread, each with those around it
  std::int64_t counts_[2] = {0, 0};
};
inline Sectors sectors;

// Ends the launch with a std::logic_error from a place that cannot throw. From inside a kernel; does not return.
void give_up(const std::string& mistake);

}  // namespace boost_ext::cuda::emulator
