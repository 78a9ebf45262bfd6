#include "cublas.h"

#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "counters.h"

namespace boost_ext::cuda::emulator {

namespace {

enum Status { kSuccess = 0, kNotInitialized = 1, kInvalidValue = 7, kExecutionFailed = 13 };
enum Operation { kAsItIs = 0, kTransposed = 1 };
enum Math { kDefaultMath = 0, kTf32Math = 3 };
constexpr std::size_t kAlignment = 256;  // of the workspace

struct Handle {
  int device;
  cudaStream_t stream = nullptr;
  void* workspace = nullptr;
  int math = kDefaultMath;
};

// Nobody gives them back.
struct Handles {
  std::mutex mutex;
  std::map<void*, std::unique_ptr<Handle>> all;
};
Handles& handles() {
  static auto* const h = new Handles;
  return *h;
}

Handle* handle_of(void* p) {
  const std::lock_guard<std::mutex> lock(handles().mutex);
  const auto found = handles().all.find(p);
  return found == handles().all.end() ? nullptr : found->second.get();
}

int create(void** handle) {
  if (handle == nullptr) return kInvalidValue;
  if (pretended().cublas == 2) return kNotInitialized;
  int device = 0;
  cudaGetDevice(&device);
  auto made = std::make_unique<Handle>(Handle{device});
  *handle = made.get();
  const std::lock_guard<std::mutex> lock(handles().mutex);
  handles().all[*handle] = std::move(made);
  return kSuccess;
}

int set_stream(void* p, cudaStream_t stream) {
  Handle* const handle = handle_of(p);
  if (handle == nullptr) return kNotInitialized;
  handle->stream = stream;
  handle->workspace = nullptr;  // it is that of the library again
  return kSuccess;
}

int set_workspace(void* p, void* workspace, std::size_t bytes) {
  Handle* const handle = handle_of(p);
  if (handle == nullptr) return kNotInitialized;
  if (workspace == nullptr || reinterpret_cast<std::uintptr_t>(workspace) % kAlignment != 0) return kInvalidValue;
  if (!holds(workspace, bytes)) throw std::logic_error("cuBLAS: the workspace is shorter than said");
  handle->workspace = workspace;
  std::memset(workspace, 0xff, bytes);  // its contents are the library's
  return kSuccess;
}

int set_math_mode(void* p, int math) {
  Handle* const handle = handle_of(p);
  if (handle == nullptr) return kNotInitialized;
  if (math != kDefaultMath && math != kTf32Math) return kInvalidValue;
  handle->math = math;
  return kSuccess;
}

// To 10 bits behind the first one, to the nearest; a nan stays one.
float to_tf32(float x) {
  constexpr std::uint32_t kRest = (1U << 13) - 1, kHalf = 1U << 12;
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  if (!std::isfinite(x)) return x;
  bits = (bits + kHalf - 1 + (bits >> 13 & 1)) & ~kRest;
  std::memcpy(&x, &bits, sizeof bits);
  return x;
}
double to_tf32(double x) { return x; }

const char* status_string(int status) {
  switch (status) {
    case kSuccess:
      return "success";
    case kNotInitialized:
      return "the library was not initialized";
    case kInvalidValue:
      return "an unsupported value or parameter was passed to the function";
    default:
      return "the function failed to launch on the GPU";
  }
}

// A matrix in columns that begin `leading` elements apart.
struct Columns {
  std::int64_t rows, columns, leading;
  std::int64_t extent() const { return rows > 0 && columns > 0 ? (columns - 1) * leading + rows : 0; }
};

template <class T> bool overlap(const T* a, std::int64_t a_size, const T* b, std::int64_t b_size) {
  return a < b + b_size && b < a + a_size;
}

template <class T>
int multiply_batch(void* p, int a_operation, int b_operation, int m, int n, int k, const T* factor, const T* a,
                   int a_leading, long long a_next, const T* b, int b_leading, long long b_next, const T* kept, T* c,
                   int c_leading, long long c_next, int count) {
  Handle* const handle = handle_of(p);
  if (handle == nullptr) return kNotInitialized;
  for (const int operation : {a_operation, b_operation}) {
    if (operation != kAsItIs && operation != kTransposed) return kInvalidValue;
  }
  if (m < 0 || n < 0 || k < 0 || count < 0 || factor == nullptr || kept == nullptr) return kInvalidValue;
  const bool a_turned = a_operation == kTransposed, b_turned = b_operation == kTransposed;
  const Columns of_a{a_turned ? k : m, a_turned ? m : k, a_leading}, of_c{m, n, c_leading};
  const Columns of_b{b_turned ? n : k, b_turned ? k : n, b_leading};
  for (const Columns& columns : {of_a, of_b, of_c}) {
    if (columns.leading < 1 || columns.leading < columns.rows) return kInvalidValue;
  }
  if (m == 0 || n == 0 || count == 0) return kSuccess;
  if (a == nullptr || b == nullptr || c == nullptr) return kInvalidValue;
  int device = 0;
  cudaGetDevice(&device);
  if (device != handle->device || !usable(handle->stream)) return kExecutionFailed;
  if (handle->workspace == nullptr) throw std::logic_error("cuBLAS: a product without a workspace of the caller's");
  // One behind another, or side by side in the columns of a larger matrix.
  const bool apart = c_next >= of_c.extent() || (c_next >= m && (count - 1) * c_next + m <= c_leading);
  if (count > 1 && !apart) throw std::logic_error("cuBLAS: results of a batch overlap");
  std::vector<T> turned(static_cast<std::size_t>(m) * static_cast<std::size_t>(k)), sums(static_cast<std::size_t>(m));
  for (int item = 0; item < count; ++item, a += a_next, b += b_next, c += c_next) {
    for (const auto& [first, columns] : {std::pair<const T*, Columns>{a, of_a}, {b, of_b}, {c, of_c}}) {
      if (!holds(first, static_cast<std::size_t>(columns.extent()) * sizeof(T))) {
        throw std::logic_error("cuBLAS: a matrix is longer than its memory");
      }
    }
    if (overlap<T>(a, of_a.extent(), c, of_c.extent()) || overlap<T>(b, of_b.extent(), c, of_c.extent())) {
      throw std::logic_error("cuBLAS: the result overlaps a factor");
    }
    for (std::int64_t l = 0; l < k; ++l) {
      for (std::int64_t i = 0; i < m; ++i) {
        const T value = a[a_turned ? i * a_leading + l : l * a_leading + i];
        turned[static_cast<std::size_t>(l * m + i)] = handle->math == kTf32Math ? to_tf32(value) : value;
      }
    }
    for (std::int64_t j = 0; j < n; ++j) {
      std::fill(sums.begin(), sums.end(), T{0});
      for (std::int64_t l = 0; l < k; ++l) {
        const T factor_of_b = b[b_turned ? l * b_leading + j : j * b_leading + l];
        const T by = handle->math == kTf32Math ? to_tf32(factor_of_b) : factor_of_b;
        const T* const column = &turned[static_cast<std::size_t>(l * m)];
        for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += column[i] * by;
      }
      for (std::int64_t i = 0; i < m; ++i) {
        T& to = c[j * c_leading + i];
        const T product = *factor * sums[static_cast<std::size_t>(i)];
        to = *kept == 0 ? product : product + *kept * to;
      }
    }
  }
  return kSuccess;
}

template <class T>
int multiply(void* p, int a_operation, int b_operation, int m, int n, int k, const T* factor, const T* a, int a_leading,
             const T* b, int b_leading, const T* kept, T* c, int c_leading) {
  return multiply_batch(p, a_operation, b_operation, m, n, k, factor, a, a_leading, 0, b, b_leading, 0, kept, c,
                        c_leading, 0, 1);
}

bool opened = false;

}  // namespace

void* open_library(const char* name, int mode) {
  if (pretended().cublas == 0 || std::string(name) != "libcublas.so.13") return nullptr;
  if ((mode & RTLD_NOLOAD) != 0 && !opened) return nullptr;
  opened = true;
  return &opened;
}

void* find_function(void* library, const char* name) {
  struct Named {
    const char* name;
    void* function;
  };
  static const Named functions[] = {
      {"cublasCreate_v2", reinterpret_cast<void*>(&create)},
      {"cublasSetStream_v2", reinterpret_cast<void*>(&set_stream)},
      {"cublasSetWorkspace_v2", reinterpret_cast<void*>(&set_workspace)},
      {"cublasSetMathMode", reinterpret_cast<void*>(&set_math_mode)},
      {"cublasGetStatusString", reinterpret_cast<void*>(&status_string)},
      {"cublasSgemm_v2", reinterpret_cast<void*>(&multiply<float>)},
      {"cublasDgemm_v2", reinterpret_cast<void*>(&multiply<double>)},
      {"cublasSgemmStridedBatched", reinterpret_cast<void*>(&multiply_batch<float>)},
      {"cublasDgemmStridedBatched", reinterpret_cast<void*>(&multiply_batch<double>)},
  };
  if (library != &opened) return nullptr;
  for (const Named& f : functions) {
    if (std::strcmp(f.name, name) == 0) return f.function;
  }
  return nullptr;
}

}  // namespace boost_ext::cuda::emulator
