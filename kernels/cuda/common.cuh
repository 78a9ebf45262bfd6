// What every CUDA kernel is written with: launches, memory of a stream, and sums over a block in a fixed order. The
// same files are compiled by nvcc, and for tests by a C++ compiler on the emulator.
#pragma once

#include <cuda_runtime.h>

#include "ops/runtime.h"

#define BOOST_EXT_DEVICE __device__ __forceinline__

namespace boost_ext::cuda {

constexpr int kThreads = 256;
constexpr int kWarp = 32;
constexpr unsigned kWholeWarp = 0xffffffffu;

void require_driver();  // that it is as new as these kernels need; std::runtime_error
[[noreturn]] void fail(cudaError_t error, const char* what);
inline void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) fail(error, what);
}
inline cudaStream_t stream_of(const Context& context) { return static_cast<cudaStream_t>(context.stream); }

// Makes the context's device the current one, and the one before it again.
class OnDevice {
 public:
  explicit OnDevice(const Context& context);
  ~OnDevice();
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  int before_ = -1;
};

constexpr std::int64_t kMostBlocks = 2147483647;  // of a launch

template <class T> struct Itself {
  using type = T;
};

// Enqueues a kernel; no blocks, no launch. Arguments of up to 32 KB travel by value, so that a captured graph owns
// them. What is reported is the error of this launch, and not one that somebody left behind.
template <class... Parameters>
void launch(const Context& context, void (*kernel)(Parameters...), std::int64_t blocks, int threads,
            const typename Itself<Parameters>::type&... arguments) {
  if (blocks == 0) return;
  check(blocks > 0 && blocks <= kMostBlocks ? cudaSuccess : cudaErrorInvalidConfiguration, "launch");
  const dim3 grid(static_cast<unsigned>(blocks)), block(static_cast<unsigned>(threads));
#if defined(BOOST_EXT_CUDA_EMULATOR)
  check(emulator::launch(grid, block, stream_of(context), kernel, arguments...), "launch");
#else
  void* at[] = {const_cast<void*>(static_cast<const void*>(&arguments))...};
  check(cudaLaunchKernel(reinterpret_cast<const void*>(kernel), grid, block, at, 0, stream_of(context)), "launch");
#endif
}

// Memory for the time of some launches, in the order of the stream, of the current device, which is the context's: from
// the context's allocator, or from a pool of ours.
class WorkMemory {
 public:
  WorkMemory(const Context& context, std::int64_t bytes);
  ~WorkMemory();
  WorkMemory(const WorkMemory&) = delete;
  WorkMemory& operator=(const WorkMemory&) = delete;
  void* get() const { return data_; }

 private:
  Context context_;
  void* owner_ = nullptr;  // what the allocator wants back
  void* data_ = nullptr;
};
template <class T> class Workspace {
 public:
  Workspace(const Context& context, std::int64_t count)
      : memory_(context, count * static_cast<std::int64_t>(sizeof(T))) {}
  T* get() const { return static_cast<T*>(memory_.get()); }

 private:
  WorkMemory memory_;
};

// A Number as a kernel sees it.
struct Scalar {
  float value;
  const float* device;
  explicit Scalar(const Number& n)
      : value(static_cast<float>(n.value)), device(n.on_device() ? static_cast<const float*>(n.at.data) : nullptr) {}
  BOOST_EXT_DEVICE float get() const { return device != nullptr ? *device : value; }
};

// sum + x y, of which the product is exact in float64: the fused operation rounds as a product and a sum do.
BOOST_EXT_DEVICE double add_product(double sum, float x, float y) {
  return __fma_rn(static_cast<double>(x), static_cast<double>(y), sum);
}

// combine() over the values of all threads of a block, always in the same order; the result is thread 0's. T travels
// through shared memory; blocks have kThreads threads. The last warp to work waits for nobody else.
template <class T, class Combine> BOOST_EXT_DEVICE T reduce_block(T mine, Combine combine) {
  __shared__ T all[kThreads];
  __syncthreads();  // somebody may still read the last result
  all[threadIdx.x] = mine;
  for (unsigned half = kThreads / 2; half >= kWarp; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) all[threadIdx.x] = combine(all[threadIdx.x], all[threadIdx.x + half]);
  }
  if (threadIdx.x >= kWarp) return mine;
  for (unsigned half = kWarp / 2; half > 0; half /= 2) {
    __syncwarp();
    if (threadIdx.x < half) all[threadIdx.x] = combine(all[threadIdx.x], all[threadIdx.x + half]);
  }
  return all[threadIdx.x];
}
BOOST_EXT_DEVICE double sum_block(double mine) {
  return reduce_block(mine, [](double a, double b) { return a + b; });
}

// The sum of value(j) for j < count, for thread 0. Nothing but the count decides the order.
template <class Value> BOOST_EXT_DEVICE double sum_in_block(std::int64_t count, Value value) {
  double sum = 0;
  for (std::int64_t j = threadIdx.x; j < count; j += kThreads) sum += static_cast<double>(value(j));
  return sum_block(sum);
}

}  // namespace boost_ext::cuda
