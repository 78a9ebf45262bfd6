// The worker threads behind every kernel. A caller hands out chunks and works on them itself; it returns when all
// chunks are done, without waiting for a worker that never got to run. That is why this is not OpenMP, whose barrier
// waits for every thread of the team: beside MindSpore's own threads a core is often taken, and then the barrier costs
// a scheduler tick (4 ms measured) for a 2 ms kernel. Before a worker sleeps it watches for the next call as long as it
// would take to wake it. It may run wherever it might, but on the core of the last caller.
#pragma once

#include <cstdint>

namespace boost_ext {

using ChunkFunction = void (*)(void* body, std::int64_t begin, std::int64_t end);

// body is called for disjoint ranges that cover 0..items, from up to `threads` threads (the caller included), in no
// particular order; ranges of `chunk` items, or all items in one call where only the caller works: with one thread, in
// a forked process, or when the pool is at work for somebody else. It must not throw.
void run_chunks(int threads, std::int64_t items, std::int64_t chunk, ChunkFunction function, void* body);

// While one lives, chunks of calls from its thread run on the threads of GCC's OpenMP, if the process has loaded it:
// PyTorch's, which are awake after its last function, and spin on the cores that workers of ours would need.
class OnOpenMp {
 public:
  explicit OnOpenMp(bool is_on);
  ~OnOpenMp();
  OnOpenMp(const OnOpenMp&) = delete;
  OnOpenMp& operator=(const OnOpenMp&) = delete;

 private:
  bool before_;
};

// True in a process that was forked: the workers stayed behind in the parent.
bool forked();

}  // namespace boost_ext
