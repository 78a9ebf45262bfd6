// What every CUDA kernel is written with: launches, memory of a stream, elements of any storage type as float32, and
// sums over a block in a fixed order. The same files are compiled by nvcc, and for tests by a C++ compiler on the
// emulator.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "ops/runtime.h"

#define BOOST_EXT_DEVICE __device__ __forceinline__

namespace boost_ext::cuda {

constexpr int kThreads = 256;
constexpr int kWarp = 32;
constexpr int kPack = 8;  // elements that a thread reads at a time: 16 bytes of halves, twice 16 of float32
constexpr unsigned kWholeWarp = 0xffffffffu;

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

// From a pool of ours, in the order of the stream: of the current device, which is the context's.
void* pool_allocate(const Context& context, std::int64_t bytes);

// Memory for the time of some launches, in the order of the stream.
template <class T> class Workspace {
 public:
  Workspace(const Context& context, std::int64_t count)
      : context_(context),
        data_(count > 0 ? static_cast<T*>(pool_allocate(context, count * static_cast<std::int64_t>(sizeof(T))))
                        : nullptr) {}
  ~Workspace() { free_bytes(context_, data_); }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  T* get() const { return data_; }

 private:
  static void free_bytes(const Context& context, void* memory) {
    if (memory != nullptr && cudaFreeAsync(memory, stream_of(context)) != cudaSuccess) cudaGetLastError();
  }
  Context context_;
  T* data_;
};

// A Number as a kernel sees it.
struct Scalar {
  float value;
  const float* device;
  explicit Scalar(const Number& n)
      : value(static_cast<float>(n.value)), device(n.on_device() ? static_cast<const float*>(n.at.data) : nullptr) {}
  BOOST_EXT_DEVICE float get() const { return device != nullptr ? *device : value; }
};

constexpr unsigned kInfBits = 0x7f800000u;  // of float32; a nan's, without its sign, are more

BOOST_EXT_DEVICE float as_float(float x) { return x; }
BOOST_EXT_DEVICE float as_float(__half x) { return __half2float(x); }
BOOST_EXT_DEVICE float as_float(__nv_bfloat16 x) { return __bfloat162float(x); }

// Elements by index, whatever they are stored as.
BOOST_EXT_DEVICE float load(const void* p, DType t, std::int64_t i) {
  if (t == DType::f16) return __half2float(static_cast<const __half*>(p)[i]);
  if (t == DType::bf16) return __bfloat162float(static_cast<const __nv_bfloat16*>(p)[i]);
  return static_cast<const float*>(p)[i];
}
BOOST_EXT_DEVICE void store(void* p, DType t, std::int64_t i, float x) {
  if (t == DType::f16)
    static_cast<__half*>(p)[i] = __float2half_rn(x);
  else if (t == DType::bf16)
    static_cast<__nv_bfloat16*>(p)[i] = __float2bfloat16_rn(x);
  else
    static_cast<float*>(p)[i] = x;
}
// What a store and a load would make of it.
BOOST_EXT_DEVICE float rounded(DType t, float x) {
  if (t == DType::f16) return __half2float(__float2half_rn(x));
  if (t == DType::bf16) return __bfloat162float(__float2bfloat16_rn(x));
  return x;
}

struct Pack {
  float v[kPack];
};

// A whole pack as it is stored: 16 bytes of halves, or twice 16 of float32. To read it asks for no branch and no
// conversion, behind which other reads would have to wait.
struct Raw {
  uint4 low, high;
};
BOOST_EXT_DEVICE Raw load_raw(const void* p, DType t, std::int64_t i) {
  const bool wide = t == DType::f32;
  const uint4* from = reinterpret_cast<const uint4*>(static_cast<const unsigned short*>(p) + (wide ? 2 * i : i));
  Raw raw;
  raw.low = from[0];
  raw.high = wide ? from[1] : make_uint4(0, 0, 0, 0);
  return raw;
}
BOOST_EXT_DEVICE Pack unpacked(const Raw& raw, DType t) {
  Pack x;
  const unsigned pair[4] = {raw.low.x, raw.low.y, raw.low.z, raw.low.w};
  if (t == DType::f32) {
    const unsigned more[4] = {raw.high.x, raw.high.y, raw.high.z, raw.high.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) x.v[j] = __uint_as_float(pair[j]), x.v[4 + j] = __uint_as_float(more[j]);
    return x;
  }
#pragma unroll
  for (int j = 0; j < kPack; ++j) {
    const auto half = static_cast<unsigned short>(j % 2 ? pair[j / 2] >> 16 : pair[j / 2] & 0xffffu);
    x.v[j] = t == DType::f16 ? __half2float(__ushort_as_half(half)) : __uint_as_float(unsigned{half} << 16);
  }
  return x;
}

// n <= kPack elements that are on their way, zeros behind them: converted when they are asked for, so that other reads
// may begin before. `aligned`: p is so to 16 bytes, and i is a multiple of kPack.
struct Coming {
  Raw raw;
  DType type;
  BOOST_EXT_DEVICE Pack get() const { return unpacked(raw, type); }
};
BOOST_EXT_DEVICE Coming coming_pack(const void* p, DType t, std::int64_t i, int n, bool aligned) {
  if (aligned && n == kPack) return {load_raw(p, t, i), t};
  unsigned bits[kPack];
#pragma unroll
  for (int j = 0; j < kPack; ++j) bits[j] = j < n ? __float_as_uint(load(p, t, i + j)) : 0;
  return {{make_uint4(bits[0], bits[1], bits[2], bits[3]), make_uint4(bits[4], bits[5], bits[6], bits[7])}, DType::f32};
}

// The same, for who needs them now. Nobody waits for float32 here.
BOOST_EXT_DEVICE Pack load_pack(const void* p, DType t, std::int64_t i, int n, bool aligned) {
  Pack x;
  if (!aligned || n < kPack) {
#pragma unroll
    for (int j = 0; j < kPack; ++j) x.v[j] = j < n ? load(p, t, i + j) : 0.0F;
    return x;
  }
  if (t == DType::f32) {
    const float4* from = reinterpret_cast<const float4*>(static_cast<const float*>(p) + i);
    const float4 low = from[0], high = from[1];
    x.v[0] = low.x, x.v[1] = low.y, x.v[2] = low.z, x.v[3] = low.w;
    x.v[4] = high.x, x.v[5] = high.y, x.v[6] = high.z, x.v[7] = high.w;
    return x;
  }
  return unpacked(load_raw(p, t, i), t);
}

// One store of 16 or of 8 bytes: of a plain one nvcc makes four, where it finds that another branch begins alike.
BOOST_EXT_DEVICE void store_whole(void* to, uint4 x) {
#if defined(__CUDA_ARCH__)
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
#else
  *static_cast<uint4*>(to) = x;
#endif
}
BOOST_EXT_DEVICE void store_whole(void* to, uint2 x) {
#if defined(__CUDA_ARCH__)
  asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(x.x), "r"(x.y) : "memory");
#else
  *static_cast<uint2*>(to) = x;
#endif
}

BOOST_EXT_DEVICE unsigned half_bits(DType t, float x) {
  return t == DType::f16 ? __half_as_ushort(__float2half_rn(x)) : __bfloat16_as_ushort(__float2bfloat16_rn(x));
}

BOOST_EXT_DEVICE void store_pack(void* p, DType t, std::int64_t i, int n, bool aligned, const Pack& x) {
  if (!aligned || n < kPack) {
#pragma unroll
    for (int j = 0; j < kPack; ++j) {
      if (j < n) store(p, t, i + j, x.v[j]);
    }
    return;
  }
  if (t == DType::f32) {
    unsigned bits[kPack];
#pragma unroll
    for (int j = 0; j < kPack; ++j) bits[j] = __float_as_uint(x.v[j]);
    float* const to = static_cast<float*>(p) + i;
    store_whole(to, make_uint4(bits[0], bits[1], bits[2], bits[3]));
    store_whole(to + 4, make_uint4(bits[4], bits[5], bits[6], bits[7]));
    return;
  }
  unsigned pair[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) pair[j] = half_bits(t, x.v[2 * j]) | half_bits(t, x.v[2 * j + 1]) << 16;
  store_whole(static_cast<unsigned short*>(p) + i, make_uint4(pair[0], pair[1], pair[2], pair[3]));
}

// Bit by bit: a conversion would lose which nan it is.
BOOST_EXT_DEVICE void copy_pack(void* to, const void* from, DType t, std::int64_t i, int n, bool aligned) {
  if (aligned && n == kPack) {
    const Raw raw = load_raw(from, t, i);
    uint4* const at = reinterpret_cast<uint4*>(static_cast<unsigned short*>(to) + (t == DType::f32 ? 2 * i : i));
    store_whole(at, raw.low);
    if (t == DType::f32) store_whole(at + 1, raw.high);
  } else if (t == DType::f32) {
    for (int j = 0; j < n; ++j) static_cast<unsigned*>(to)[i + j] = static_cast<const unsigned*>(from)[i + j];
  } else {
    for (int j = 0; j < n; ++j)
      static_cast<unsigned short*>(to)[i + j] = static_cast<const unsigned short*>(from)[i + j];
  }
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
