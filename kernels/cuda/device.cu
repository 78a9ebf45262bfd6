// See ops/device.h.
#include "common.cuh"
#include "ops/device.h"

namespace boost_ext::cuda {
namespace {

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> items;
  std::istringstream stream(list);
  for (std::string item; std::getline(stream, item, ',');) items.push_back(item);
  return items;
}

#if defined(BOOST_EXT_CUDA_EMULATOR)
constexpr bool kEmulated = true;
#else
constexpr bool kEmulated = false;
#endif

}  // namespace

void fail(cudaError_t error, const char* what) {
  cudaGetLastError();  // reported now: it is not the next launch's
  throw std::runtime_error(text("CUDA: ", what, ": ", cudaGetErrorString(error), " (", cudaGetErrorName(error), ")"));
}

OnDevice::OnDevice(const Context& context) {
  check(cudaGetDevice(&before_), "current device");
  if (before_ == context.device_id)
    before_ = -1;
  else
    check(cudaSetDevice(context.device_id), "current device");
}

OnDevice::~OnDevice() {
  if (before_ >= 0) cudaSetDevice(before_);
}

const Build* build() {
  static const Build build{text(CUDART_VERSION / 1000, '.', CUDART_VERSION % 1000 / 10),
                           split(BOOST_EXT_CUDA_ARCHITECTURES), kEmulated};
  return &build;
}

void* allocate(const Context& context, std::int64_t bytes) {
  const OnDevice device(context);
  void* memory = nullptr;
  if (bytes > 0) check(cudaMallocAsync(&memory, static_cast<std::size_t>(bytes), stream_of(context)), "memory");
  return memory;
}

// What comes back from a process that ends, or after an error that has been reported, interests nobody.
void release(const Context& context, void* memory) noexcept {
  if (memory == nullptr) return;
  int before = 0;
  cudaGetDevice(&before);
  cudaSetDevice(context.device_id);
  cudaFreeAsync(memory, stream_of(context));
  cudaSetDevice(before);
  cudaGetLastError();
}

void download(const Context& context, void* host, const void* memory, std::int64_t bytes) {
  if (bytes == 0) return;
  const OnDevice device(context);
  const auto size = static_cast<std::size_t>(bytes);
  check(cudaMemcpyAsync(host, memory, size, cudaMemcpyDeviceToHost, stream_of(context)), "download");
  check(cudaStreamSynchronize(stream_of(context)), "download");
}

bool is_capturing(const Context& context) {
  const OnDevice device(context);
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  // Of the legacy stream nobody may ask while some other stream is being captured; nor is it ever captured itself.
  if (context.stream == nullptr) return false;
  check(cudaStreamIsCapturing(stream_of(context), &status), "capture");
  return status != cudaStreamCaptureStatusNone;
}

void order_after(void* waiting, const Context& context) {
  const OnDevice device(context);
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "event");
  const cudaError_t recorded = cudaEventRecord(event, stream_of(context));
  const cudaError_t waits =
      recorded == cudaSuccess ? cudaStreamWaitEvent(static_cast<cudaStream_t>(waiting), event, 0) : recorded;
  cudaEventDestroy(event);
  check(waits, "event");
}

int device_of(const void* memory) {
  cudaPointerAttributes attributes{};
  check(cudaPointerGetAttributes(&attributes, memory), "address");
  if (attributes.type == cudaMemoryTypeUnregistered) {
    if (kEmulated) return 0;  // any memory of the host is as good as a device's
    throw std::runtime_error("CUDA: address: the memory of a CUDA array is not known to CUDA");
  }
  return attributes.device;
}

}  // namespace boost_ext::cuda
