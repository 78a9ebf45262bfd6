#include "native/harness.h"

namespace native {
void test_cuda_launch();
void test_cuda_threads();
void test_cuda_device_functions();
void test_cuda_runtime();
void test_cuda_watch();
void test_cuda_cublas();
}  // namespace native

int main() {
  native::test_cuda_launch();
  native::test_cuda_threads();
  native::test_cuda_device_functions();
  native::test_cuda_runtime();
  native::test_cuda_watch();
  native::test_cuda_cublas();
  std::printf("%d passed, %d failed\n", native::passed, native::failed);
  return native::failed == 0 ? 0 : 1;
}
