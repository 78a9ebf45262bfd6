// Errors, devices, streams and events; memory.cpp has the rest.
#include "runtime_api.h"

#include <dlfcn.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <set>

#include "counters.h"

struct CUstream_st {
  int device;
};
struct CUevent_st {
  bool timed, recorded;
  std::chrono::steady_clock::time_point time;
};

namespace boost_ext::cuda::emulator {

namespace {

constexpr int kDevices = 2;

thread_local cudaError_t last_error = cudaSuccess;
thread_local int current_device = 0;

struct Handles {
  std::mutex mutex;
  std::set<cudaStream_t> streams;
  std::set<cudaEvent_t> events;
  std::set<const void*> launched;  // kernels
};
Handles& handles() {
  static Handles h;
  return h;
}

bool is_default(cudaStream_t s) { return s == nullptr || s == cudaStreamLegacy || s == cudaStreamPerThread; }

bool exists(cudaStream_t stream) {
  const std::lock_guard<std::mutex> lock(handles().mutex);
  return is_default(stream) || handles().streams.count(stream) != 0;
}
bool exists(cudaEvent_t event) {
  const std::lock_guard<std::mutex> lock(handles().mutex);
  return handles().events.count(event) != 0;
}

cudaError_t handle(bool ok) { return result(ok ? cudaSuccess : cudaErrorInvalidResourceHandle); }

}  // namespace

cudaError_t result(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

int device_of(cudaStream_t stream) { return is_default(stream) ? current_device : stream->device; }
bool usable(cudaStream_t stream) { return exists(stream) && device_of(stream) == current_device; }

Pretended& pretended() {
  static Pretended p;
  return p;
}
Counters& counters() {
  static Counters c;
  return c;
}
void count_launch(const void* kernel) {
  ++counters().launches;
  const std::lock_guard<std::mutex> lock(handles().mutex);
  handles().launched.insert(kernel);
}

Counts counts() {
  const Counters& c = counters();
  const std::lock_guard<std::mutex> lock(handles().mutex);
  return {c.allocations,
          c.allocated_bytes,
          static_cast<std::int64_t>(handles().streams.size()),
          static_cast<std::int64_t>(handles().events.size()),
          c.synchronizations,
          c.launches};
}

}  // namespace boost_ext::cuda::emulator

using namespace boost_ext::cuda::emulator;

extern "C" __attribute__((visibility("default"))) void boost_ext_cuda_pretend(int driver, int memory_pools,
                                                                              int cublas) {
  pretended() = {driver, memory_pools, cublas};
}

// For tests in Python: the kernels that have been launched, as offsets in this module, whose symbols name them. Writes
// up to `most` of them, and returns how many there are.
extern "C" __attribute__((visibility("default"))) std::int64_t boost_ext_cuda_launched(std::uint64_t* offsets,
                                                                                       std::int64_t most) {
  Dl_info module{};
  dladdr(reinterpret_cast<const void*>(&counters), &module);
  const std::lock_guard<std::mutex> lock(handles().mutex);
  std::int64_t count = 0;
  for (const void* kernel : handles().launched) {
    if (count < most) {
      offsets[count] = reinterpret_cast<std::uintptr_t>(kernel) - reinterpret_cast<std::uintptr_t>(module.dli_fbase);
    }
    ++count;
  }
  return count;
}

namespace {

struct Named {
  cudaError_t error;
  const char* name;
  const char* text;
};
constexpr Named kErrors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {cudaErrorInvalidMemcpyDirection, "cudaErrorInvalidMemcpyDirection", "invalid copy direction for memcpy"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {cudaErrorMisalignedAddress, "cudaErrorMisalignedAddress", "misaligned address"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorStreamCaptureImplicit, "cudaErrorStreamCaptureImplicit",
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"},
};

}  // namespace

const char* cudaGetErrorName(cudaError_t error) {
  for (const Named& n : kErrors) {
    if (n.error == error) return n.name;
  }
  return "unrecognized error code";
}
const char* cudaGetErrorString(cudaError_t error) {
  for (const Named& n : kErrors) {
    if (n.error == error) return n.text;
  }
  return "unrecognized error code";
}
cudaError_t cudaPeekAtLastError() { return last_error; }
cudaError_t cudaGetLastError() {
  const cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = kDevices;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= kDevices) return result(cudaErrorInvalidDevice);
  current_device = device;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (device < 0 || device >= kDevices) return result(cudaErrorInvalidDevice);
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
      *value = 1024;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      *value = 48 * 1024;
      break;
    case cudaDevAttrWarpSize:
      *value = 32;
      break;
    case cudaDevAttrMultiProcessorCount:
      *value = 4;
      break;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      *value = 2048;
      break;
    case cudaDevAttrComputeCapabilityMajor:
      *value = 9;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = 0;
      break;
    case cudaDevAttrMemoryPoolsSupported:
      *value = pretended().memory_pools;
      break;
    default:
      return result(cudaErrorInvalidValue);
  }
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  ++counters().synchronizations;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = pretended().driver;
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  if (flags > cudaStreamNonBlocking) return result(cudaErrorInvalidValue);
  const std::lock_guard<std::mutex> lock(handles().mutex);
  *stream = new CUstream_st{current_device};
  handles().streams.insert(*stream);
  return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithFlags(stream, cudaStreamDefault); }
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const std::lock_guard<std::mutex> lock(handles().mutex);
  if (handles().streams.erase(stream) == 0) return result(cudaErrorInvalidResourceHandle);
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  ++counters().synchronizations;
  return handle(exists(stream));
}
cudaError_t cudaStreamQuery(cudaStream_t stream) { return handle(exists(stream)); }
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
  return handle(exists(stream));
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  thread_local cudaStreamCaptureMode current = cudaStreamCaptureModeGlobal;
  std::swap(current, *mode);
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  if (flags != cudaEventWaitDefault) return result(cudaErrorInvalidValue);
  return handle(exists(stream) && exists(event));
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  if ((flags & ~(cudaEventBlockingSync | cudaEventDisableTiming)) != 0) return result(cudaErrorInvalidValue);
  const std::lock_guard<std::mutex> lock(handles().mutex);
  *event = new CUevent_st{(flags & cudaEventDisableTiming) == 0, false, {}};
  handles().events.insert(*event);
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const std::lock_guard<std::mutex> lock(handles().mutex);
  if (handles().events.erase(event) == 0) return result(cudaErrorInvalidResourceHandle);
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (!exists(event) || !exists(stream)) return result(cudaErrorInvalidResourceHandle);
  event->recorded = true;
  event->time = std::chrono::steady_clock::now();
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  ++counters().synchronizations;
  return handle(exists(event));
}
cudaError_t cudaEventQuery(cudaEvent_t event) { return handle(exists(event)); }
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  if (!exists(start) || !exists(end)) return result(cudaErrorInvalidResourceHandle);
  if (!start->timed || !end->timed || !start->recorded || !end->recorded) {
    return result(cudaErrorInvalidResourceHandle);
  }
  *milliseconds = std::chrono::duration<float, std::milli>(end->time - start->time).count();
  return cudaSuccess;
}
