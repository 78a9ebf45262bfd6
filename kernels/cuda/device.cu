// See ops/device.h.
#include <mutex>
#include <optional>

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

// Of the legacy stream nobody may ask while some other stream is being captured; nor is it ever captured itself.
bool captures(cudaStream_t stream) {
  if (stream == nullptr) return false;
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream, &status), "capture");
  return status != cudaStreamCaptureStatusNone;
}

// Whether memory must not go back on this stream now: it is being captured, or it is the legacy stream, which nobody
// may use while a stream that it waits for is captured. To ask, even this one, harms no capture.
bool is_closed(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaError_t error = cudaStreamIsCapturing(stream, &status);
  if (error == cudaErrorStreamCaptureImplicit) {
    cudaGetLastError();
    return true;
  }
  check(error, "capture");
  return status != cudaStreamCaptureStatusNone;
}

// What CUDA's default pool has free goes back to the system whenever somebody synchronizes, as they do once a step to
// read a loss, and has to be mapped again. Pools of ours, one a device, keep this much.
constexpr std::uint64_t kKept = std::uint64_t{256} << 20;

class Pools {
 public:
  // Nothing on a device that has no memory pools, as some virtual ones have none.
  cudaMemPool_t of_device(int id) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto i = static_cast<std::size_t>(id);
    if (i >= pools_.size()) pools_.resize(i + 1);
    if (!pools_[i]) pools_[i] = create(id);
    return *pools_[i];
  }

 private:
  static cudaMemPool_t create(int id) {
    int supported = 0;
    check(cudaDeviceGetAttribute(&supported, cudaDevAttrMemoryPoolsSupported, id), "memory");
    if (supported == 0) return nullptr;
    cudaMemPoolProps props{};
    props.allocType = cudaMemAllocationTypePinned;
    props.handleTypes = cudaMemHandleTypeNone;
    props.location.type = cudaMemLocationTypeDevice;
    props.location.id = id;
    cudaMemPool_t pool = nullptr;
    std::uint64_t kept = kKept;
    // The first call may be one that is captured, to which this does not belong.
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    check(cudaThreadExchangeStreamCaptureMode(&mode), "memory");
    cudaError_t error = cudaMemPoolCreate(&pool, &props);
    if (error == cudaSuccess) error = cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &kept);
    cudaThreadExchangeStreamCaptureMode(&mode);
    check(error, "memory");
    return pool;
  }
  std::mutex mutex_;
  std::vector<std::optional<cudaMemPool_t>> pools_;
};

cudaMemPool_t pool_of(const Context& context) {
  static auto* const pools = new Pools();  // what is allocated may outlive whatever ends with the process
  return pools->of_device(context.device_id);
}

void* pool_allocate(const Context& context, std::int64_t bytes) {
  const cudaMemPool_t pool = pool_of(context);
  const auto size = static_cast<std::size_t>(bytes);
  void* memory = nullptr;
  if (pool != nullptr) {
    check(cudaMallocFromPoolAsync(&memory, size, pool, stream_of(context)), "memory");
    return memory;
  }
  if (captures(stream_of(context))) {
    throw std::runtime_error(
        "CUDA: memory: the device has no memory pools, so that none can be made while a CUDA graph is captured");
  }
  check(cudaMalloc(&memory, size), "memory");
  return memory;
}

// Without a pool this waits for the device.
void pool_free(const Context& context, void* memory) {
  const cudaError_t error = pool_of(context) != nullptr ? cudaFreeAsync(memory, stream_of(context)) : cudaFree(memory);
  if (error != cudaSuccess) cudaGetLastError();
}

// Memory that was let go while its stream was closed: a graph must not own what it has not made.
class WaitingRoom {
 public:
  void add(const Context& context, void* memory) {
    const std::lock_guard<std::mutex> lock(mutex_);
    waiting_.push_back({context, memory});
  }
  void empty() {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (std::size_t i = waiting_.size(); i-- > 0;) {
      const OnDevice device(waiting_[i].context);
      const cudaStream_t stream = stream_of(waiting_[i].context);
      if (is_closed(stream)) continue;
      pool_free(waiting_[i].context, waiting_[i].memory);
      waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }

 private:
  struct Waiting {
    Context context;
    void* memory;
  };
  std::mutex mutex_;
  std::vector<Waiting> waiting_;
};

WaitingRoom& waiting_room() {
  static auto* const room = new WaitingRoom();  // arrays may outlive whatever ends with the process
  return *room;
}

}  // namespace

// A driver that is too old says so in the words of whatever is called first, or that a launch has too many arguments.
void require_driver() {
  static const int driver = [] {
    int version = 0;
    return cudaDriverGetVersion(&version) == cudaSuccess ? version : 0;
  }();
  constexpr bool kTwelve = CUDART_VERSION < 13000;
  constexpr int kNeeded = kTwelve ? 12010 : CUDART_VERSION / 1000 * 1000;  // 12.1: arguments of up to 32 KB
  if (driver >= kNeeded) return;
  const auto version = [](int v) { return text(v / 1000, '.', v % 1000 / 10); };
  throw std::runtime_error(text("boost_ext: its CUDA kernels must have a driver for CUDA ", version(kNeeded),
                                kTwelve            ? " or newer (R530)"
                                : kNeeded == 13000 ? " or newer (R580)"
                                                   : " or newer",
                                ", got ", driver == 0 ? "none" : "one for CUDA " + version(driver)));
}

void fail(cudaError_t error, const char* what) {
  cudaGetLastError();  // reported now: it is not the next launch's
  throw std::runtime_error(text("CUDA: ", what, ": ", cudaGetErrorString(error), " (", cudaGetErrorName(error), ")"));
}

OnDevice::OnDevice(const Context& context) {
  require_driver();
  check(cudaGetDevice(&before_), "current device");
  if (before_ == context.device_id)
    before_ = -1;
  else
    check(cudaSetDevice(context.device_id), "current device");
}

OnDevice::~OnDevice() {
  if (before_ >= 0 && cudaSetDevice(before_) != cudaSuccess) cudaGetLastError();
}

WorkMemory::WorkMemory(const Context& context, std::int64_t bytes) : context_(context) {
  if (bytes <= 0) return;
  data_ = context.allocator != nullptr ? context.allocator->allocate(context.device_id, bytes, &owner_)
                                       : pool_allocate(context, bytes);
}

WorkMemory::~WorkMemory() {
  if (data_ == nullptr) return;
  if (context_.allocator != nullptr) {
    context_.allocator->release(owner_);
    return;
  }
  try {
    pool_free(context_, data_);
  } catch (...) { cudaGetLastError(); }
}

const Build* build() {
  static const Build build{text(CUDART_VERSION / 1000, '.', CUDART_VERSION % 1000 / 10),
                           split(BOOST_EXT_CUDA_ARCHITECTURES), kEmulated};
  return &build;
}

void* allocate(const Context& context, std::int64_t bytes) {
  const OnDevice device(context);
  return bytes > 0 ? pool_allocate(context, bytes) : nullptr;
}

// What comes back from a process that ends, or after an error that has been reported, interests nobody.
void release(const Context& context, void* memory) noexcept {
  if (memory == nullptr) return;
  try {
    const OnDevice device(context);
    if (is_closed(stream_of(context))) return waiting_room().add(context, memory);
    pool_free(context, memory);
    waiting_room().empty();
  } catch (...) { cudaGetLastError(); }
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
  return captures(stream_of(context));
}

void order_after(void* waiting, const Context& context) {
  const OnDevice device(context);
  if (captures(static_cast<cudaStream_t>(waiting)) != captures(stream_of(context))) return;
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "event");
  const cudaError_t recorded = cudaEventRecord(event, stream_of(context));
  const cudaError_t waits =
      recorded == cudaSuccess ? cudaStreamWaitEvent(static_cast<cudaStream_t>(waiting), event, 0) : recorded;
  cudaEventDestroy(event);
  check(waits, "event");
}

void try_order_after(void* waiting, const Context& context) noexcept {
  try {
    order_after(waiting, context);
  } catch (...) { cudaGetLastError(); }
}

int device_of(const void* memory) {
  require_driver();
  cudaPointerAttributes attributes{};
  check(cudaPointerGetAttributes(&attributes, memory), "address");
  if (attributes.type == cudaMemoryTypeUnregistered) {
    if (kEmulated) return 0;  // any memory of the host is as good as a device's
    throw std::runtime_error("CUDA: address: the memory of a CUDA array is not known to CUDA");
  }
  return attributes.device;
}

}  // namespace boost_ext::cuda
