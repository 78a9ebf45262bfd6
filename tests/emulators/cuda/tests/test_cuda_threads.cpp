// What threads of a block do together, and kernels that are wrong on purpose: each mistake is found.
#include <numeric>
#include <set>

#include "on_device.h"

namespace native {

namespace {

constexpr unsigned kAll = 0xffffffff;

// The sum of 0 … n-1 over shared memory, with all barriers or without one of them.
template <int missing> __global__ void sum(int* out) {
  __shared__ int part[8], total;
  const int n = static_cast<int>(blockDim.x), lane = static_cast<int>(threadIdx.x) % warpSize;
  int v = static_cast<int>(threadIdx.x);
  for (int d = 16; d > 0; d /= 2) v += __shfl_down_sync(kAll, v, static_cast<unsigned>(d));
  if (lane == 0) part[threadIdx.x / 32] = v;
  if (missing != 1) __syncthreads();
  if (threadIdx.x == 0) {
    total = 0;
    for (int w = 0; w < n / 32; ++w) total += part[w];
  }
  if (missing != 2) __syncthreads();
  out[blockIdx.x * blockDim.x + threadIdx.x] = total;
}

template <int missing> int wrong_sums() {
  int wrong = 0;
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    emulator::set_seed(seed);
    std::vector<int> out(256, -1);
    try {
      // Something else is left in shared memory by a launch before.
      emulator::launch(1, 64, nullptr, sum<missing>, out.data());
      emulator::launch(1, 256, nullptr, sum<missing>, out.data());
    } catch (const std::logic_error&) {  // where shared memory is watched
    }
    wrong += std::count(out.begin(), out.end(), 255 * 128) == 256 ? 0 : 1;
  }
  emulator::set_seed(1);
  return wrong;
}

void test_missing_barriers() {
  CHECK(wrong_sums<0>() == 0);
  CHECK(wrong_sums<1>() > 0);
  CHECK(wrong_sums<2>() > 0);
  // The same within a warp.
  const auto rotated = [](bool synchronized) {
    bool right = true;
    for (int i = 0; i < 5; ++i) {
      int shared[32] = {};
      run(1, 32, [&] {
        shared[threadIdx.x] = static_cast<int>(threadIdx.x) + 1;
        if (synchronized) __syncwarp();
        right = right && shared[(threadIdx.x + 1) % 32] == static_cast<int>((threadIdx.x + 1) % 32) + 1;
      });
    }
    return right;
  };
  CHECK(rotated(true) && !rotated(false));
}

// A warp gets ahead of others by several shuffles, and falls behind.
void test_warps_run_apart() {
  std::set<int> leads;
  int steps[2] = {};
  for (int i = 0; i < 20; ++i) {
    steps[0] = steps[1] = 0;
    run(1, 64, [&] {
      for (int s = 0; s < 10; ++s) {
        __syncwarp();
        if (threadIdx.x % 32 == 0) {
          ++steps[threadIdx.x / 32];
          leads.insert(steps[0] - steps[1]);
        }
      }
    });
  }
  CHECK(*leads.begin() <= -5 && *leads.rbegin() >= 5);
}

void test_barriers_with_predicates() {
  bool right = true;
  run(2, 96, [&] {
    right = right && __syncthreads_count(rank() < 7) == 7;
    right = right && __syncthreads_or(rank() == 95) == 1 && __syncthreads_or(0) == 0;
    right = right && __syncthreads_and(2) == 1 && __syncthreads_and(rank() != 40) == 0;
  });
  CHECK(right);
}

void test_divergent_barriers() {
  std::string text = mistake(3, 64, [] {
    if (threadIdx.x < 40) __syncthreads();
  });
  CHECK(contains(text, "__syncthreads at test_cuda_threads.cpp:") &&
        contains(text, ": not all threads arrive: thread ") && contains(text, " has ended, in block ("));
  text = mistake(1, 64, [] {
    if (threadIdx.x < 32) {
      __syncthreads();
    } else {
      __syncthreads();
    }
  });
  CHECK(contains(text, "the barrier is not the same one for all threads"));
  text = mistake(1, 64, [] {
    for (unsigned i = 0; i <= threadIdx.x / 32; ++i) __syncthreads();
  });
  CHECK(contains(text, "not all threads arrive"));
  text = mistake(1, 32, [] { threadIdx.x == 3 ? __syncthreads() : __syncwarp(); });
  CHECK(contains(text, "__syncwarp at ") && contains(text, "not all lanes of its mask arrive") &&
        contains(text, "thread (3, 0, 0) waits in __syncthreads at "));
  // Afterwards all is as before.
  CHECK(wrong_sums<0>() == 0);
  CHECK_THROWS(__syncthreads(), std::logic_error, "__syncthreads: called outside of a kernel");
  CHECK_THROWS(__ballot_sync(kAll, 1), std::logic_error, "__ballot_sync: called outside of a kernel");
}

void test_mistakes_of_warps() {
  std::string text = mistake(1, 64, [] {
    if (threadIdx.x != 37) __shfl_xor_sync(kAll, 1.0F, 1);
  });
  CHECK(contains(text, "__shfl_xor_sync at ") && contains(text, "not all lanes of its mask arrive") &&
        contains(text, "thread (37, 0, 0) has ended"));
  text = mistake(1, 32, [] { __shfl_sync(0xfffe, 1, 0); });
  CHECK(contains(text, "__shfl_sync at ") && contains(text, " is not in its own mask"));
  text = mistake(1, 48, [] { __any_sync(kAll, 1); });
  CHECK(contains(text, "the mask names lanes that the last warp of 48 threads does not have"));
  text = mistake(1, 32, [] { __shfl_sync(kAll, 1, 0, 12); });
  CHECK(contains(text, ": a width of 12"));
  text = mistake(1, 32, [] { __ballot_sync(threadIdx.x < 16 ? kAll : 0xffff0000, 1); });
  CHECK(contains(text, "not all lanes of its mask arrive"));
  text = mistake(1, 32, [] { threadIdx.x < 16 ? __any_sync(kAll, 1) : __all_sync(kAll, 1); });
  CHECK(contains(text, "not all lanes of its mask arrive"));
  // Masks that are met: halves of a warp apart, a last warp of 16.
  bool right = true;
  text = mistake(2, 48, [&] {
    const unsigned lane = threadIdx.x % 32, half = lane < 16 ? 0xffff : 0xffff0000;
    right = right && __ballot_sync(threadIdx.x < 32 ? half : 0xffff, lane % 2) == (0xaaaaaaaa & (half));
    if (lane < 16) right = right && __shfl_xor_sync(0xffff, lane, 8) == (lane ^ 8);
  });
  CHECK(right && text == "nothing");
}

template <class T> void test_shuffles_of(T unit) {
  bool right = true;
  run(2, 64, [&] {
    const unsigned lane = threadIdx.x % 32;
    const auto value = [&](unsigned l) { return static_cast<T>(static_cast<T>(l) * unit); };
    for (unsigned width = 1; width <= 32; width *= 2) {
      const unsigned first = lane / width * width;
      const auto w = static_cast<int>(width);
      for (unsigned by = 0; by < 32; ++by) {
        const auto b = static_cast<int>(by);
        right = right && __shfl_sync(kAll, value(lane), b, w) == value(first + by % width);
        const unsigned other = lane ^ by;
        right = right && __shfl_xor_sync(kAll, value(lane), b, w) == value(other < first + width ? other : lane);
        const bool inside = lane + by < first + width;
        right = right && __shfl_down_sync(kAll, value(lane), by, w) == value(inside ? lane + by : lane);
        right = right && __shfl_up_sync(kAll, value(lane), by, w) == value(lane - first >= by ? lane - by : lane);
      }
    }
  });
  CHECK(right);
}

void test_shuffles() {
  test_shuffles_of<int>(-3);
  test_shuffles_of<unsigned>(0x7ffffff);
  test_shuffles_of<long long>(-0x123456789abLL);
  test_shuffles_of<unsigned long long>(0x3ffffffffffffffULL);
  test_shuffles_of<float>(-0.375F);
  test_shuffles_of<double>(1e200);
  bool right = true;
  run(1, 32, [&] {
    if (threadIdx.x < 16) {  // from a lane outside of the mask: nothing to rely on
      const float v = __shfl_down_sync(0xffff, 1.0F, 8);
      right = right && (threadIdx.x < 8 ? v == 1 : std::isnan(v));
    }
  });
  CHECK(right);
}

void test_votes() {
  bool right = true;
  run(1, 64, [&] {
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    right = right && __ballot_sync(kAll, lane % 4 == warp) == (0x11111111U << warp);
    right = right && __any_sync(kAll, lane == 31) == 1 && __any_sync(kAll, 0) == 0;
    right = right && __all_sync(kAll, 5) == 1 && __all_sync(kAll, lane != 9) == 0;
    right = right && __reduce_max_sync(kAll, lane * 3) == 93 && __reduce_min_sync(kAll, lane + 3) == 3;
    right = right && __reduce_or_sync(kAll, 1U << lane) == kAll && __reduce_and_sync(kAll, lane | 64) == 64;
    right = right && __reduce_add_sync(kAll, lane) == 496;
  });
  CHECK(right);
}

}  // namespace

void test_cuda_threads() {
  test_missing_barriers();
  test_warps_run_apart();
  test_barriers_with_predicates();
  test_divergent_barriers();
  test_mistakes_of_warps();
  test_shuffles();
  test_votes();
}

}  // namespace native
