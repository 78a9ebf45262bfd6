namespace native {
void test_cuda_device_functions() {}
}  // namespace native
