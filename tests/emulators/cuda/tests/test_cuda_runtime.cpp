// The runtime: memory between guards, devices, streams, events, errors.
#include "on_device.h"

namespace native {

namespace {

void test_memory() {
  const emulator::Counts before = emulator::counts();
  float* p = nullptr;
  CHECK(cudaMallocAsync(&p, 100 * sizeof(float), nullptr) == cudaSuccess);
  CHECK(reinterpret_cast<std::uintptr_t>(p) % 256 == 0);
  bool poisoned = true;
  for (int i = 0; i < 100; ++i) poisoned = poisoned && std::isnan(p[i]);
  CHECK(poisoned);
  CHECK(emulator::counts().allocations == before.allocations + 1);
  CHECK(emulator::counts().allocated_bytes == before.allocated_bytes + 400);
  float host[100], back[100] = {};
  for (int i = 0; i < 100; ++i) host[i] = static_cast<float>(i);
  CHECK(cudaMemcpyAsync(p, host, sizeof host, cudaMemcpyHostToDevice, nullptr) == cudaSuccess);
  CHECK(cudaMemsetAsync(p, 0, 8, nullptr) == cudaSuccess);
  CHECK(cudaMemcpy(back, p, sizeof back, cudaMemcpyDeviceToHost) == cudaSuccess);
  CHECK(back[1] == 0 && back[2] == 2 && back[99] == 99);
  CHECK(cudaMemcpy(p, host, 404, cudaMemcpyDefault) == cudaErrorInvalidValue);
  CHECK(cudaMemsetAsync(p + 1, 0, 400) == cudaErrorInvalidValue && cudaGetLastError() == cudaErrorInvalidValue);
  CHECK(cudaFreeAsync(p, nullptr) == cudaSuccess);
  CHECK(cudaFreeAsync(p, nullptr) == cudaErrorInvalidValue && cudaGetLastError() == cudaErrorInvalidValue);
  CHECK(cudaFree(nullptr) == cudaSuccess && cudaFree(host) == cudaErrorInvalidValue);
  CHECK(cudaGetLastError() == cudaErrorInvalidValue && cudaGetLastError() == cudaSuccess);
  CHECK(emulator::counts().allocations == before.allocations);
  CHECK(emulator::counts().allocated_bytes == before.allocated_bytes);
  void* none = host;
  CHECK(cudaMalloc(&none, 0) == cudaSuccess && none == nullptr);
}

void test_pools() {
  const emulator::Counts before = emulator::counts();
  cudaMemPoolProps props{};
  props.allocType = cudaMemAllocationTypePinned;
  props.handleTypes = cudaMemHandleTypeNone;
  props.location = {cudaMemLocationTypeDevice, 2};
  cudaMemPool_t pool = nullptr;
  CHECK(cudaMemPoolCreate(&pool, &props) == cudaErrorInvalidDevice && pool == nullptr);
  props.location.id = 1;
  CHECK(cudaMemPoolCreate(&pool, &props) == cudaSuccess && pool != nullptr);
  std::uint64_t kept = 1 << 20;
  CHECK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &kept) == cudaSuccess);
  void* p = nullptr;
  CHECK(cudaMallocFromPoolAsync(&p, 10, nullptr, nullptr) == cudaErrorInvalidValue && p == nullptr);
  CHECK(cudaMallocFromPoolAsync(&p, 10, pool, nullptr) == cudaSuccess);
  cudaPointerAttributes a{};
  CHECK(cudaPointerGetAttributes(&a, p) == cudaSuccess && a.device == 1);
  CHECK(emulator::counts().allocations == before.allocations + 1);
  CHECK(cudaFreeAsync(p, nullptr) == cudaSuccess && emulator::counts().allocations == before.allocations);
  CHECK(cudaMemPoolDestroy(pool) == cudaSuccess);
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  CHECK(cudaThreadExchangeStreamCaptureMode(&mode) == cudaSuccess && mode == cudaStreamCaptureModeGlobal);
  CHECK(cudaThreadExchangeStreamCaptureMode(&mode) == cudaSuccess && mode == cudaStreamCaptureModeRelaxed);
  cudaGetLastError();
}

void test_guards() {
  for (const int at : {-1, 7, 70, -200, 0, 6}) {
    unsigned char* p = nullptr;
    cudaMalloc(&p, 7);
    p[at] = 1;
    const std::string expected = at < 0    ? "device memory was written before an allocation of 7 bytes"
                                 : at >= 7 ? "device memory was written behind an allocation of 7 bytes"
                                           : "nothing";
    CHECK_THROWS(cudaFree(p), std::logic_error, expected);
  }
}

void test_devices() {
  int value = -1;
  CHECK(cudaGetDeviceCount(&value) == cudaSuccess && value == 2);
  CHECK(cudaGetDevice(&value) == cudaSuccess && value == 0);
  CHECK(cudaSetDevice(2) == cudaErrorInvalidDevice && cudaSetDevice(-1) == cudaErrorInvalidDevice);
  CHECK(cudaGetLastError() == cudaErrorInvalidDevice);
  CHECK(cudaSetDevice(1) == cudaSuccess && cudaGetDevice(&value) == cudaSuccess && value == 1);
  char* p = nullptr;
  cudaMalloc(&p, 10);
  cudaSetDevice(0);
  cudaPointerAttributes a{};
  CHECK(cudaPointerGetAttributes(&a, p + 9) == cudaSuccess && a.type == cudaMemoryTypeDevice && a.device == 1);
  CHECK(a.devicePointer == p + 9);
  CHECK(cudaPointerGetAttributes(&a, p + 10) == cudaSuccess && a.type == cudaMemoryTypeUnregistered);
  cudaFree(p);
  CHECK(cudaPointerGetAttributes(&a, p) == cudaSuccess && a.type == cudaMemoryTypeUnregistered);
  const auto attribute = [](cudaDeviceAttr which) {
    int v = -1;
    CHECK(cudaDeviceGetAttribute(&v, which, 1) == cudaSuccess);
    return v;
  };
  CHECK(attribute(cudaDevAttrMultiProcessorCount) == 4 && attribute(cudaDevAttrComputeCapabilityMajor) == 9);
  CHECK(attribute(cudaDevAttrComputeCapabilityMinor) == 0 && attribute(cudaDevAttrWarpSize) == 32);
  CHECK(attribute(cudaDevAttrMaxThreadsPerBlock) == 1024);
  CHECK(cudaDeviceGetAttribute(&value, cudaDevAttrWarpSize, 7) == cudaErrorInvalidDevice);
  CHECK(cudaGetLastError() == cudaErrorInvalidDevice);
  CHECK(cudaRuntimeGetVersion(&value) == cudaSuccess && value >= 12000);
  CHECK(cudaDriverGetVersion(&value) == cudaSuccess && value >= 12000);
}

void test_streams_and_events() {
  const emulator::Counts before = emulator::counts();
  cudaStream_t a = nullptr, b = nullptr;
  cudaEvent_t start = nullptr, end = nullptr, untimed = nullptr;
  CHECK(cudaStreamCreate(&a) == cudaSuccess && cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking) == cudaSuccess);
  CHECK(cudaEventCreate(&start) == cudaSuccess && cudaEventCreate(&end) == cudaSuccess);
  CHECK(cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming) == cudaSuccess);
  CHECK(emulator::counts().streams == before.streams + 2 && emulator::counts().events == before.events + 3);
  float elapsed = -1;
  CHECK(cudaEventElapsedTime(&elapsed, start, end) == cudaErrorInvalidResourceHandle);
  CHECK(cudaEventRecord(start, a) == cudaSuccess && cudaEventRecord(end, b) == cudaSuccess);
  CHECK(cudaEventRecord(untimed, nullptr) == cudaSuccess && cudaStreamWaitEvent(b, untimed, 0) == cudaSuccess);
  CHECK(cudaEventElapsedTime(&elapsed, start, end) == cudaSuccess && elapsed >= 0);
  CHECK(cudaEventElapsedTime(&elapsed, start, untimed) == cudaErrorInvalidResourceHandle);
  cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusActive;
  CHECK(cudaStreamIsCapturing(a, &capturing) == cudaSuccess && capturing == cudaStreamCaptureStatusNone);
  CHECK(emulator::counts().synchronizations == before.synchronizations);
  CHECK(cudaStreamSynchronize(a) == cudaSuccess && cudaEventSynchronize(end) == cudaSuccess);
  CHECK(cudaDeviceSynchronize() == cudaSuccess);
  CHECK(emulator::counts().synchronizations == before.synchronizations + 3);
  CHECK(cudaStreamDestroy(b) == cudaSuccess && cudaStreamDestroy(b) == cudaErrorInvalidResourceHandle);
  void* p = nullptr;
  CHECK(cudaMallocAsync(&p, 4, b) == cudaErrorInvalidResourceHandle && p == nullptr);
  CHECK(cudaStreamSynchronize(b) == cudaErrorInvalidResourceHandle);
  CHECK(cudaStreamDestroy(a) == cudaSuccess && cudaStreamDestroy(nullptr) == cudaErrorInvalidResourceHandle);
  for (cudaEvent_t e : {start, end, untimed}) CHECK(cudaEventDestroy(e) == cudaSuccess);
  CHECK(cudaEventRecord(end, nullptr) == cudaErrorInvalidResourceHandle);
  CHECK(emulator::counts().streams == before.streams && emulator::counts().events == before.events);
  cudaGetLastError();
}

void test_errors() {
  CHECK(cudaSetDevice(9) == cudaErrorInvalidDevice && cudaPeekAtLastError() == cudaErrorInvalidDevice);
  int device = 0;
  CHECK(cudaGetDevice(&device) == cudaSuccess && cudaPeekAtLastError() == cudaErrorInvalidDevice);
  CHECK(cudaGetLastError() == cudaErrorInvalidDevice && cudaPeekAtLastError() == cudaSuccess);
  CHECK(std::string(cudaGetErrorName(cudaErrorInvalidConfiguration)) == "cudaErrorInvalidConfiguration");
  CHECK(std::string(cudaGetErrorString(cudaErrorInvalidConfiguration)) == "invalid configuration argument");
  CHECK(std::string(cudaGetErrorString(static_cast<cudaError_t>(12345))) == "unrecognized error code");
}

}  // namespace

void test_cuda_runtime() {
  test_memory();
  test_pools();
  test_guards();
  test_devices();
  test_streams_and_events();
  test_errors();
}

}  // namespace native
