// Launches: every thread of every block runs once, in ever other orders; what the device refuses is refused.
#include <chrono>
#include <numeric>
#include <set>
#include <thread>

#include "on_device.h"

namespace native {

namespace {

__global__ void scale(const float* x, float* y, float by, int n) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < static_cast<unsigned>(n)) y[i] = x[i] * by;
}

void test_every_thread_runs_once() {
  const dim3 grid(3, 4, 2), block(8, 4, 3);
  std::vector<int> seen(3 * 4 * 2 * 8 * 4 * 3, 0);
  bool same = true;
  run(grid, block, [&] {
    same = same && gridDim.x == 3 && gridDim.y == 4 && gridDim.z == 2 && blockDim.y == 4 && blockDim.z == 3;
    const unsigned b = blockIdx.x + 3 * (blockIdx.y + 4 * blockIdx.z);
    ++seen[b * 96 + rank()];
  });
  CHECK(same && std::count(seen.begin(), seen.end(), 1) == static_cast<long>(seen.size()));
  std::vector<float> x(1000), y(1000, -1);
  std::iota(x.begin(), x.end(), 0.0F);
  emulator::launch(4, 256, nullptr, scale, x.data(), y.data(), 0.5, 999);
  CHECK(y[0] == 0 && y[998] == 499 && y[999] == -1);
}

std::vector<unsigned> order_of_threads() {
  std::vector<unsigned> order;
  run(4, 64, [&] { order.push_back(blockIdx.x * 64 + threadIdx.x); });
  return order;
}

void test_orders() {
  emulator::set_seed(5);
  const auto first = order_of_threads(), second = order_of_threads();
  CHECK(first != second && !std::is_sorted(first.begin(), first.end()));
  emulator::set_seed(5);
  CHECK(order_of_threads() == first && order_of_threads() == second);
  emulator::set_seed(6);
  CHECK(order_of_threads() != first);
  std::set<unsigned> first_blocks;
  for (int i = 0; i < 64; ++i) first_blocks.insert(order_of_threads()[0] / 64);
  CHECK(first_blocks.size() == 4);
  emulator::set_seed(1);
}

template <std::size_t n> struct Bytes {
  unsigned char data[n];
};
template <std::size_t n> __global__ void takes(Bytes<n> b, int* out) { *out = b.data[n - 1]; }

void test_parameters() {
  static_assert(emulator::parameter_bytes<>() == 0);
  static_assert(emulator::parameter_bytes<char, double, char>() == 17);
  static_assert(emulator::parameter_bytes<Bytes<32764>>() == emulator::kMaxParameterBytes);
  Bytes<32752> large{};
  large.data[32751] = 7;
  int out = 0;
  emulator::launch(2, 64, nullptr, takes<32752>, large, &out);
  CHECK(out == 7);
}

void test_refused_launches() {
  const auto refused = [](dim3 grid, dim3 block, cudaStream_t stream = nullptr) {
    const auto before = emulator::counts().launches;
    const auto f = [] {};
    emulator::launch(grid, block, stream, call<decltype(f)>, &f);
    CHECK((emulator::counts().launches == before) == (cudaPeekAtLastError() != cudaSuccess));
    return cudaGetLastError();
  };
  CHECK(refused(1, 1024) == cudaSuccess && cudaGetLastError() == cudaSuccess);
  CHECK(refused(1, dim3(16, 1, 64)) == cudaSuccess);
  CHECK(refused(1, 1025) == cudaErrorInvalidConfiguration && cudaGetLastError() == cudaSuccess);
  CHECK(refused(1, dim3(32, 33)) == cudaErrorInvalidConfiguration);
  CHECK(refused(1, dim3(1, 1, 65)) == cudaErrorInvalidConfiguration);
  CHECK(refused(0, 32) == cudaErrorInvalidConfiguration && refused(1, 0) == cudaErrorInvalidConfiguration);
  CHECK(refused(dim3(1, 0), 32) == cudaErrorInvalidConfiguration);
  CHECK(refused(dim3(1, 65536), 32) == cudaErrorInvalidConfiguration);
  CHECK(refused(dim3(1, 1, 65536), 32) == cudaErrorInvalidConfiguration);
  CHECK(refused(0x80000000, 32) == cudaErrorInvalidConfiguration);
  cudaStream_t stream = nullptr;
  cudaStreamCreate(&stream);
  CHECK(refused(1, 32, stream) == cudaSuccess && refused(1, 32, cudaStreamPerThread) == cudaSuccess);
  cudaSetDevice(1);
  CHECK(refused(1, 32, stream) == cudaErrorInvalidResourceHandle);
  cudaSetDevice(0);
  cudaStreamDestroy(stream);
  CHECK(refused(1, 32, stream) == cudaErrorInvalidResourceHandle);
  CHECK_THROWS(run(1, 1, [] { run(1, 1, [] {}); }), std::logic_error, "a kernel launches a kernel");
}

// Sums of blocks in shared memory, by several threads of the host at once.
__global__ void sums(const int* x, int* out) {
  __shared__ int part[256];
  part[threadIdx.x] = x[blockIdx.x * 256 + threadIdx.x];
  for (unsigned half = 128; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
  }
  if (threadIdx.x == 0) out[blockIdx.x] = part[0];
}

void test_host_threads() {
  std::vector<int> x(4 * 256 * 20), out(4 * 20);
  std::iota(x.begin(), x.end(), 0);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&x, &out, t] {
      for (int i = 0; i < 5; ++i) emulator::launch(20, 256, nullptr, sums, &x[t * 256 * 20], &out[t * 20]);
    });
  }
  for (std::thread& t : threads) t.join();
  bool right = true;
  for (int b = 0; b < 80; ++b) right = right && out[b] == 256 * 256 * b + 255 * 128;
  CHECK(right);
}

void test_speed() {
  std::vector<double> milliseconds;
  for (int i = 0; i < 5; ++i) {
    const auto start = std::chrono::steady_clock::now();
    int sum = 0;
    run(400, 256, [&] {
      __syncthreads();
      ++sum;
    });
    CHECK(sum == 102400);
    milliseconds.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
  }
  std::printf("102400 threads with a barrier: %.1f ms\n", *std::min_element(milliseconds.begin(), milliseconds.end()));
}

}  // namespace

void test_cuda_launch() {
  test_every_thread_runs_once();
  test_orders();
  test_parameters();
  test_refused_launches();
  test_host_threads();
  test_speed();
}

}  // namespace native
