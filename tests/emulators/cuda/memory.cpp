// Memory on the device: blocks of the host's, each between two guards.
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>

#include "counters.h"

namespace boost_ext::cuda::emulator {

namespace {

constexpr std::size_t kGuard = 256;  // also how cudaMalloc aligns
constexpr int kUnwritten = 0xff, kGuarded = 0xa5;

struct Allocation {
  std::size_t bytes;
  int device;
};

class Memory {
 public:
  cudaError_t allocate(void** pointer, std::size_t bytes, int device) {
    if (pointer == nullptr) return cudaErrorInvalidValue;
    *pointer = nullptr;
    if (bytes == 0) return cudaSuccess;
    // Exactly as long as asked, so that the guard behind begins at the first byte too many.
    auto* block = static_cast<unsigned char*>(::operator new(whole(bytes), std::align_val_t{kGuard}, std::nothrow));
    if (block == nullptr) return cudaErrorMemoryAllocation;
    std::memset(block, kGuarded, whole(bytes));
    std::memset(block + kGuard, kUnwritten, bytes);
    *pointer = block + kGuard;
    const std::lock_guard<std::mutex> lock(mutex_);
    allocations_[block + kGuard] = {bytes, device};
    ++counters().allocations;
    counters().allocated_bytes += static_cast<std::int64_t>(bytes);
    return cudaSuccess;
  }

  cudaError_t release(void* pointer) {
    if (pointer == nullptr) return cudaSuccess;
    auto* data = static_cast<unsigned char*>(pointer);
    std::size_t bytes = 0;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      const auto found = allocations_.find(data);
      if (found == allocations_.end()) return cudaErrorInvalidValue;
      bytes = found->second.bytes;
      allocations_.erase(found);
      --counters().allocations;
      counters().allocated_bytes -= static_cast<std::int64_t>(bytes);
    }
    const bool before = intact(data - kGuard), behind = intact(data + bytes);
    std::memset(data - kGuard, kUnwritten, whole(bytes));
    ::operator delete(data - kGuard, std::align_val_t{kGuard});
    if (!before || !behind) {
      throw std::logic_error(std::string("device memory was written ") + (before ? "behind" : "before") +
                             " an allocation of " + std::to_string(bytes) + " bytes");
    }
    return cudaSuccess;
  }

  // The allocation that an address lies in, or null; `left` are the bytes from there to its end.
  const Allocation* find(const void* address, std::size_t* left) {
    auto* at = static_cast<unsigned char*>(const_cast<void*>(address));
    auto next = allocations_.upper_bound(at);
    if (next == allocations_.begin()) return nullptr;
    --next;
    const auto offset = static_cast<std::size_t>(at - next->first);
    if (offset >= next->second.bytes) return nullptr;
    *left = next->second.bytes - offset;
    return &next->second;
  }

  // Memory that is not ours may be as long as it likes.
  bool holds(const void* address, std::size_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::size_t left = 0;
    return find(address, &left) == nullptr || left >= bytes;
  }

  cudaPointerAttributes attributes(const void* address) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::size_t left = 0;
    const Allocation* a = find(address, &left);
    auto* p = const_cast<void*>(address);
    if (a == nullptr) return {cudaMemoryTypeUnregistered, -2, nullptr, p};
    return {cudaMemoryTypeDevice, a->device, p, nullptr};
  }

 private:
  static std::size_t whole(std::size_t bytes) { return bytes + 2 * kGuard; }
  static bool intact(const unsigned char* guard) {
    for (std::size_t i = 0; i < kGuard; ++i) {
      if (guard[i] != kGuarded) return false;
    }
    return true;
  }

  std::mutex mutex_;
  std::map<unsigned char*, Allocation> allocations_;
};

Memory& memory() {
  static auto* m = new Memory;  // never destroyed: what is static elsewhere may still free
  return *m;
}

int current_device() {
  int device = 0;
  cudaGetDevice(&device);
  return device;
}

}  // namespace

bool holds(const void* address, std::size_t bytes) { return memory().holds(address, bytes); }

}  // namespace boost_ext::cuda::emulator

using namespace boost_ext::cuda::emulator;

cudaError_t cudaMalloc(void** pointer, std::size_t bytes) {
  return result(memory().allocate(pointer, bytes, current_device()));
}
cudaError_t cudaMallocAsync(void** pointer, std::size_t bytes, cudaStream_t stream) {
  if (cudaStreamQuery(stream) != cudaSuccess) return cudaErrorInvalidResourceHandle;
  return result(memory().allocate(pointer, bytes, device_of(stream)));
}

// A pool is no more than the device that it says.
struct CUmemPoolHandle_st {
  int device;
};
cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps* props) {
  int devices = 0;
  cudaGetDeviceCount(&devices);
  if (pool == nullptr || props == nullptr || props->allocType != cudaMemAllocationTypePinned ||
      props->location.type != cudaMemLocationTypeDevice) {
    return result(cudaErrorInvalidValue);
  }
  if (pretended().memory_pools == 0) return result(cudaErrorNotSupported);
  if (props->location.id < 0 || props->location.id >= devices) return result(cudaErrorInvalidDevice);
  *pool = new CUmemPoolHandle_st{props->location.id};
  return cudaSuccess;
}
cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) {
  if (pool == nullptr) return result(cudaErrorInvalidValue);
  delete pool;
  return cudaSuccess;
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  const bool known = pool != nullptr && value != nullptr && attribute == cudaMemPoolAttrReleaseThreshold;
  return result(known ? cudaSuccess : cudaErrorInvalidValue);
}
cudaError_t cudaMallocFromPoolAsync(void** pointer, std::size_t bytes, cudaMemPool_t pool, cudaStream_t stream) {
  if (cudaStreamQuery(stream) != cudaSuccess) return cudaErrorInvalidResourceHandle;
  if (pool == nullptr) return result(cudaErrorInvalidValue);
  return result(memory().allocate(pointer, bytes, pool->device));
}
cudaError_t cudaFree(void* pointer) {
  ++counters().synchronizations;
  return result(memory().release(pointer));
}
cudaError_t cudaFreeAsync(void* pointer, cudaStream_t stream) {
  if (cudaStreamQuery(stream) != cudaSuccess) return cudaErrorInvalidResourceHandle;
  return result(pointer == nullptr ? cudaErrorInvalidValue : memory().release(pointer));
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  if (cudaStreamQuery(stream) != cudaSuccess) return cudaErrorInvalidResourceHandle;
  if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault) return result(cudaErrorInvalidMemcpyDirection);
  if (bytes == 0) return cudaSuccess;
  if (to == nullptr || from == nullptr || !memory().holds(to, bytes) || !memory().holds(from, bytes)) {
    return result(cudaErrorInvalidValue);
  }
  std::memmove(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  ++counters().synchronizations;
  return cudaMemcpyAsync(to, from, bytes, kind, nullptr);
}
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  if (cudaStreamQuery(stream) != cudaSuccess) return cudaErrorInvalidResourceHandle;
  if (bytes == 0) return cudaSuccess;
  if (to == nullptr || !memory().holds(to, bytes)) return result(cudaErrorInvalidValue);
  std::memset(to, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemset(void* to, int value, std::size_t bytes) { return cudaMemsetAsync(to, value, bytes, nullptr); }
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  if (attributes == nullptr) return result(cudaErrorInvalidValue);
  *attributes = memory().attributes(pointer);
  return cudaSuccess;
}
