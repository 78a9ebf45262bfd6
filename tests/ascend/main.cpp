#include "native/harness.h"

namespace native {
void test_emulator();
void test_emulated_order();
void test_emulated_values();
void test_tiling();
void test_ascend_kernels();
void test_far_indices();
void test_ascend_steps();
void test_ascend_ops();
void test_barriers();
}  // namespace native

int main() {
  native::test_emulator();
  native::test_emulated_order();
  native::test_emulated_values();
  native::test_tiling();
  native::test_ascend_kernels();
  native::test_far_indices();
  native::test_ascend_steps();
  native::test_ascend_ops();
  native::test_barriers();
  std::printf("%d passed, %d failed\n", native::passed, native::failed);
  return native::failed == 0 ? 0 : 1;
}
