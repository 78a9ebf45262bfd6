namespace native {
void test_cuda_runtime() {}
}  // namespace native
