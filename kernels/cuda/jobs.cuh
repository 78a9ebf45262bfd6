// Jobs of different sizes in one launch: what a block of it does is some block of some job. Like the tables of tensors,
// the table of jobs is an argument by value.
#pragma once

#include "multi_tensor.cuh"

namespace boost_ext::cuda {

// Block b of the launch is block b - first[k] of job k where first[k] <= b < first[k + 1].
template <class Job> struct Jobs {
  static constexpr int kCapacity = (kParameterBytes - 512) / static_cast<int>(sizeof(Job) + sizeof(std::int64_t));
  std::int64_t first[kCapacity + 1];
  std::int64_t count;
  Job job[kCapacity];

  std::int64_t blocks() const { return first[count]; }
};

template <class Job> BOOST_EXT_DEVICE int job_of(const Jobs<Job>& jobs, std::int64_t block) {
  int low = 0, high = static_cast<int>(jobs.count);
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (jobs.first[middle] <= block)
      low = middle;
    else
      high = middle;
  }
  return low;
}

// body(i) for the elements of this block, which has one chunk of the `size` elements of job `which`.
template <class Job, class Body>
BOOST_EXT_DEVICE void each_of_chunk(const Jobs<Job>& jobs, int which, std::int64_t size, Body body) {
  const std::int64_t begin = (blockIdx.x - jobs.first[which]) * kChunk;
  const std::int64_t end = begin + kChunk < size ? begin + kChunk : size;
  for (std::int64_t i = begin + threadIdx.x; i < end; i += kThreads) body(i);
}

// launch_one(jobs) for all jobs, as many at a time as an argument holds; blocks_of(job) may be 0.
template <class Job, class BlocksOf, class LaunchOne>
void each_launch_of(const std::vector<Job>& all, BlocksOf blocks_of, LaunchOne launch_one) {
  using Part = Jobs<Job>;
  Part part;
  part.count = part.first[0] = 0;
  const auto launch_part = [&] {
    if (part.count > 0) launch_one(static_cast<const Part&>(part));
    part.count = 0;
  };
  for (const Job& job : all) {
    const std::int64_t blocks = blocks_of(job);
    if (blocks == 0) continue;
    if (part.count == Part::kCapacity || part.first[part.count] + blocks > kMostBlocks) launch_part();
    part.job[part.count] = job;
    part.first[part.count + 1] = part.first[part.count] + blocks;
    ++part.count;
  }
  launch_part();
}

// Divisions of 64 bits are slow, and seldom needed.
BOOST_EXT_DEVICE std::int64_t quotient(std::int64_t a, std::int64_t b) {
  if (((a | b) >> 32) == 0) return static_cast<std::uint32_t>(a) / static_cast<std::uint32_t>(b);
  return a / b;
}
inline std::int64_t quotient_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace boost_ext::cuda
