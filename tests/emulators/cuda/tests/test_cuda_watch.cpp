// Shared memory watched: kernels that lack a barrier are found in every launch, whatever they compute.
#include "on_device.h"

namespace native {

namespace {

// Without the sanitizer's calls, in builds that have another sanitizer, there is nothing to test.
#ifdef __SANITIZE_THREAD__

template <int missing> __global__ void rotate(int* out, int times) {
  __shared__ int values[64];
  for (int i = 0; i < times; ++i) {
    values[threadIdx.x] = static_cast<int>(threadIdx.x);
    if (missing != 1) __syncthreads();
    out[threadIdx.x] = values[(threadIdx.x + 33) % 64];
    if (missing != 2) __syncthreads();
  }
}

template <int missing> __global__ void rotate_in_warps(int* out, int times) {
  __shared__ int values[64];
  const unsigned next = threadIdx.x / 32 * 32 + (threadIdx.x + 1) % 32;
  for (int i = 0; i < times; ++i) {
    values[threadIdx.x] = static_cast<int>(threadIdx.x);
    if (missing == 3) __shfl_sync(0xffffffff, 0, 0);  // orders no memory
    if (missing != 1 && missing != 3) __syncwarp();
    out[threadIdx.x] = values[next];
    if (missing != 2) __syncwarp();
  }
}

// What a lane writes has been read by another one before, and by itself since.
template <bool waits> __global__ void adds(int* out) {
  __shared__ int values[64];
  values[threadIdx.x] = 1;
  __syncwarp();
  const int other = values[threadIdx.x ^ 1];
  if (waits) __syncwarp();
  values[threadIdx.x] += other;
  out[threadIdx.x] = values[threadIdx.x];
}

__global__ void writes_twice(int* out) {
  __shared__ int value;
  value = 1;
  __syncthreads();
  *out = value;
}

__global__ void reads_nothing(int* out, int n) {
  __shared__ int values[64];
  if (static_cast<int>(threadIdx.x) < n) values[threadIdx.x] = 1;
  __syncthreads();
  out[threadIdx.x] = values[threadIdx.x];
}

template <class... P, class... A> std::string watched(void (*kernel)(P...), A... arguments) {
  std::string text = "nothing";
  try {
    emulator::launch(2, 64, nullptr, kernel, arguments...);
  } catch (const std::logic_error& e) { text = e.what(); }
  return text.substr(0, text.find(" what thread number "));
}

void test_all() {
  std::vector<int> out(64);
  for (int i = 0; i < 20; ++i) {
    CHECK(watched(rotate<0>, out.data(), 3) == "nothing" && watched(rotate<2>, out.data(), 1) == "nothing");
    CHECK(contains(watched(rotate<1>, out.data(), 1), "shared memory: a thread "));
    CHECK(contains(watched(rotate<2>, out.data(), 2), "shared memory: a thread "));
    CHECK(watched(rotate_in_warps<0>, out.data(), 3) == "nothing");
    CHECK(contains(watched(rotate_in_warps<1>, out.data(), 1), "shared memory: a thread "));
    CHECK(contains(watched(rotate_in_warps<2>, out.data(), 2), "shared memory: a thread "));
    CHECK(contains(watched(rotate_in_warps<3>, out.data(), 1), "shared memory: a thread "));
    CHECK(watched(adds<true>, out.data()) == "nothing");
    CHECK(contains(watched(adds<false>, out.data()), "shared memory: a thread "));
    CHECK(contains(watched(writes_twice, out.data()), "shared memory: a thread writes"));
    CHECK(watched(reads_nothing, out.data(), 64) == "nothing");
    CHECK(contains(watched(reads_nothing, out.data(), 63), "a thread reads what none of its block has written"));
  }
}
#else
void test_all() {}
#endif

}  // namespace

void test_cuda_watch() { test_all(); }

}  // namespace native
