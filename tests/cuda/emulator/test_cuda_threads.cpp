namespace native {
void test_cuda_threads() {}
}  // namespace native
