// See blas.cuh.
#include <dlfcn.h>

#include <atomic>
#include <optional>

#include "blas.cuh"
#include "ops/device.h"

namespace boost_ext::cuda {
namespace {

constexpr std::int64_t kMostSide = 2147483647;               // it counts in int
constexpr std::int64_t kWorkBytes = std::int64_t{32} << 20;  // what NVIDIA recommends for compute capability 9.0
constexpr std::int64_t kAlignment = 256;                     // of it
constexpr int kAsItIs = 0, kTransposed = 1;                  // of cublasOperation_t
constexpr int kDefaultMath = 0, kTf32Math = 3;               // of cublasMath_t

template <class T>
using Multiply = int (*)(void*, int, int, int, int, int, const T*, const T*, int, const T*, int, const T*, T*, int);
template <class T>
using MultiplyBatch = int (*)(void*, int, int, int, int, int, const T*, const T*, int, long long, const T*, int,
                              long long, const T*, T*, int, long long, int);

// The functions of cublas_api.h that we call; each returns a status, 0 for success.
struct Library {
  int (*create)(void**);
  int (*set_stream)(void*, cudaStream_t);
  int (*set_workspace)(void*, void*, std::size_t);
  int (*set_math_mode)(void*, int);
  const char* (*status_string)(int);
  Multiply<float> multiply_f32;
  Multiply<double> multiply_f64;
  MultiplyBatch<float> multiply_batch_f32;
  MultiplyBatch<double> multiply_batch_f64;
};

void* open(const char* name, int how) {
#if defined(BOOST_EXT_CUDA_EMULATOR)
  return emulator::open_library(name, how);
#else
  return dlopen(name, RTLD_LAZY | RTLD_LOCAL | how);
#endif
}

template <class Function> bool find(void* library, const char* name, Function& function) {
#if defined(BOOST_EXT_CUDA_EMULATOR)
  void* const found = emulator::find_function(library, name);
#else
  void* const found = dlsym(library, name);
#endif
  function = reinterpret_cast<Function>(found);
  return found != nullptr;
}

std::atomic<const char*> used{nullptr};

// What the process has loaded, PyTorch's for example, goes first: two of a kind in one process would be one too many.
std::optional<Library> find_library() {
  constexpr const char* kNames[] = {"libcublas.so.13", "libcublas.so.12"};
  int driver = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess) return std::nullopt;
  const int first = driver < 13000 ? 1 : 0;  // 13 starts with a driver for it only
  for (const int how : {RTLD_NOLOAD, 0}) {
    for (int i = first; i < 2; ++i) {
      void* const library = open(kNames[i], how);
      if (library == nullptr) continue;
      Library l{};
      const bool whole =
          find(library, "cublasCreate_v2", l.create) && find(library, "cublasSetStream_v2", l.set_stream) &&
          find(library, "cublasSetWorkspace_v2", l.set_workspace) &&
          find(library, "cublasSetMathMode", l.set_math_mode) &&
          find(library, "cublasGetStatusString", l.status_string) && find(library, "cublasSgemm_v2", l.multiply_f32) &&
          find(library, "cublasDgemm_v2", l.multiply_f64) &&
          find(library, "cublasSgemmStridedBatched", l.multiply_batch_f32) &&
          find(library, "cublasDgemmStridedBatched", l.multiply_batch_f64);
      if (!whole) continue;
      used = kNames[i];
      return l;
    }
  }
  return std::nullopt;
}

const std::optional<Library>& library() {
  static const std::optional<Library> found = find_library();
  return found;
}

void check_blas(int status, const char* what) {
  if (status == 0) return;
  cudaGetLastError();  // reported now: it is not the next launch's
  throw std::runtime_error(text("CUDA: cuBLAS: ", what, ": ", library()->status_string(status)));
}

// The handles, one a device; whoever uses one holds the lock.
struct Handles {
  std::mutex mutex;
  std::vector<void*> of_device;
};
Handles& handles() {
  static auto* const all = new Handles();  // cuBLAS may have ended before whatever ends with the process
  return *all;
}

void* handle_of(int device) {
  std::vector<void*>& all = handles().of_device;
  const auto i = static_cast<std::size_t>(device);
  if (i >= all.size()) all.resize(i + 1);
  if (all[i] != nullptr) return all[i];
  // The first call may be one that is captured, to which this does not belong.
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  check(cudaThreadExchangeStreamCaptureMode(&mode), "cuBLAS");
  void* handle = nullptr;
  const int status = library()->create(&handle);
  cudaThreadExchangeStreamCaptureMode(&mode);
  check_blas(status, "start");
  return all[i] = handle;
}

// In columns a matrix in rows is its transpose, and the product is that of the transposes in the other order.
template <class T> void multiply_rows(void* handle, const Gemm<T>& g, Multiply<T> one, MultiplyBatch<T> batch) {
  const auto whole = [](std::int64_t n) { return static_cast<int>(n); };
  const int a = g.a.transposed ? kTransposed : kAsItIs, b = g.b.transposed ? kTransposed : kAsItIs;
  const int status = g.count == 1
                         ? one(handle, b, a, whole(g.columns), whole(g.rows), whole(g.inner), &g.factor, g.b.first,
                               whole(g.b.stride), g.a.first, whole(g.a.stride), &g.kept, g.c.first, whole(g.c.stride))
                         : batch(handle, b, a, whole(g.columns), whole(g.rows), whole(g.inner), &g.factor, g.b.first,
                                 whole(g.b.stride), g.b.next, g.a.first, whole(g.a.stride), g.a.next, &g.kept,
                                 g.c.first, whole(g.c.stride), g.c.next, whole(g.count));
  check_blas(status, "product");
}

}  // namespace

bool is_for_blas(std::int64_t least, std::int64_t most) {
  return least >= kLeastSide && most <= kMostSide && library().has_value();
}

Blas::Blas(const Context& context, bool allow_tf32)
    : memory_(context, kWorkBytes + kAlignment), lock_(handles().mutex), handle_(handle_of(context.device_id)) {
  // Of a new stream the library forgets the memory.
  check_blas(library()->set_stream(handle_, stream_of(context)), "stream");
  const auto begin = reinterpret_cast<std::uintptr_t>(memory_.get());
  auto* const aligned = reinterpret_cast<void*>((begin + kAlignment - 1) / kAlignment * kAlignment);
  check_blas(library()->set_workspace(handle_, aligned, static_cast<std::size_t>(kWorkBytes)), "memory");
  check_blas(library()->set_math_mode(handle_, allow_tf32 ? kTf32Math : kDefaultMath), "math mode");
}

void Blas::multiply(const Gemm<float>& g) const {
  multiply_rows(handle_, g, library()->multiply_f32, library()->multiply_batch_f32);
}
void Blas::multiply(const Gemm<double>& g) const {
  multiply_rows(handle_, g, library()->multiply_f64, library()->multiply_batch_f64);
}

std::string blas_in_use() {
  const char* const name = used;
  return name != nullptr ? name : "";
}

}  // namespace boost_ext::cuda
