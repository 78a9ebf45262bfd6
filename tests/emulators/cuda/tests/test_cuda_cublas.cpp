// The stand-in for cuBLAS: products in columns beside their definition, and what is refused.
#include <dlfcn.h>

#include "on_device.h"

namespace native {

namespace {

using Multiply = int (*)(void*, int, int, int, int, int, const float*, const float*, int, long long, const float*, int,
                         long long, const float*, float*, int, long long, int);

template <class Function> Function function(const char* name) {
  return reinterpret_cast<Function>(emulator::find_function(emulator::open_library("libcublas.so.13", 0), name));
}

struct Library {
  void* handle = nullptr;
  float* workspace = nullptr;
  Multiply multiply = function<Multiply>("cublasSgemmStridedBatched");

  Library() {
    CHECK(function<int (*)(void**)>("cublasCreate_v2")(&handle) == 0);
    CHECK(cudaMalloc(&workspace, 1024) == cudaSuccess);
    set_stream(nullptr);
    CHECK(set_workspace(1024) == 0);
  }
  ~Library() { cudaFree(workspace); }
  void set_stream(cudaStream_t stream) const {
    CHECK(function<int (*)(void*, cudaStream_t)>("cublasSetStream_v2")(handle, stream) == 0);
  }
  int set_workspace(std::size_t bytes) const {
    return function<int (*)(void*, void*, std::size_t)>("cublasSetWorkspace_v2")(handle, workspace, bytes);
  }
};

// Element (i, j) of a matrix in columns, transposed or not, of the batch's second item.
float at(const std::vector<float>& x, bool transposed, int leading, int next, int i, int j) {
  return x[static_cast<std::size_t>(next + (transposed ? i * leading + j : j * leading + i))];
}

void test_products(const Library& library) {
  constexpr int m = 3, n = 4, k = 5, leading = 7, next = 50;
  for (const int turned : {0, 1, 2, 3}) {
    const bool a_turned = (turned & 1) != 0, b_turned = (turned & 2) != 0;
    std::vector<float> a(100), b(100), c(100);
    for (std::size_t i = 0; i < a.size(); ++i) {
      a[i] = static_cast<float>(i % 11), b[i] = static_cast<float>(i % 13), c[i] = static_cast<float>(i % 7);
    }
    const std::vector<float> before = c;
    for (const float kept : {0.0F, 2.0F}) {
      const float factor = 0.5F;
      c = before;
      if (kept == 0) c[next] = std::numeric_limits<float>::quiet_NaN();  // not read
      CHECK(library.multiply(library.handle, a_turned ? 1 : 0, b_turned ? 1 : 0, m, n, k, &factor, a.data(), leading,
                             next, b.data(), leading, next, &kept, c.data(), leading, next, 2) == 0);
      bool same = true;
      for (int i = 0; i < m; ++i) {
        for (int j = 0; j < n; ++j) {
          float sum = 0;
          for (int l = 0; l < k; ++l) {
            sum += at(a, a_turned, leading, next, i, l) * at(b, b_turned, leading, next, l, j);
          }
          same = same && at(c, false, leading, next, i, j) ==
                             factor * sum + (kept == 0 ? 0 : kept * at(before, false, leading, next, i, j));
        }
      }
      CHECK(same && c[next + m] == before[next + m] && c[next - 1] == before[next - 1]);
    }
  }
}

void test_refusals(const Library& library) {
  float a[16] = {}, b[16] = {}, c[16] = {}, one = 1;
  const auto call = [&](int m, int leading_a, int leading_c, float* to, long long next, int count) {
    return library.multiply(library.handle, 0, 0, m, 2, 2, &one, a, leading_a, 0, b, 2, 0, &one, to, leading_c, next,
                            count);
  };
  const auto mistake_of = [&](auto&& body) {
    try {
      body();
    } catch (const std::logic_error& e) { return std::string(e.what()); }
    return std::string("nothing");
  };
  constexpr int kInvalidValue = 7, kNotInitialized = 1, kExecutionFailed = 13;
  CHECK(call(2, 2, 2, c, 0, 1) == 0);
  CHECK(call(2, 1, 2, c, 0, 1) == kInvalidValue && call(2, 2, 1, c, 0, 1) == kInvalidValue);
  CHECK(call(-1, 2, 2, c, 0, 1) == kInvalidValue && call(2, 2, 2, nullptr, 0, 1) == kInvalidValue);
  CHECK(call(2, 2, 4, c, 2, 2) == 0 && call(2, 2, 2, c, 4, 2) == 0);  // side by side, one behind another
  CHECK(contains(mistake_of([&] { call(2, 2, 3, c, 2, 2); }), "overlap"));
  CHECK(contains(mistake_of([&] { call(2, 2, 2, b + 1, 0, 1); }), "overlaps a factor"));
  float* short_one = nullptr;
  CHECK(cudaMalloc(&short_one, 12) == cudaSuccess);
  CHECK(contains(mistake_of([&] { call(2, 2, 2, short_one, 0, 1); }), "longer than its memory"));
  cudaFree(short_one);
  CHECK(contains(mistake_of([&] { library.set_workspace(1025); }), "shorter than said"));
  library.set_stream(nullptr);
  CHECK(contains(mistake_of([&] { call(2, 2, 2, c, 0, 1); }), "without a workspace"));
  CHECK(library.set_workspace(1024) == 0);
  CHECK(cudaSetDevice(1) == cudaSuccess && call(2, 2, 2, c, 0, 1) == kExecutionFailed);
  cudaSetDevice(0);
  CHECK(library.multiply(nullptr, 0, 0, 1, 1, 1, &one, a, 1, 0, b, 1, 0, &one, c, 1, 0, 1) == kNotInitialized);
}

void test_the_linker() {
  CHECK(emulator::open_library("libcublas.so.12", 0) == nullptr);
  void* const library = emulator::open_library("libcublas.so.13", 0);
  CHECK(library != nullptr && emulator::open_library("libcublas.so.13", RTLD_NOLOAD) == library);
  CHECK(emulator::find_function(library, "cublasDgemm") == nullptr);
  emulator::pretended().cublas = 0;
  CHECK(emulator::open_library("libcublas.so.13", 0) == nullptr);
  emulator::pretended().cublas = 1;
}

}  // namespace

void test_cuda_cublas() {
  CHECK(emulator::open_library("libcublas.so.13", RTLD_NOLOAD) == nullptr);
  const Library library;
  test_products(library);
  test_refusals(library);
  test_the_linker();
}

}  // namespace native
