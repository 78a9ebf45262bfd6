// The C ABI of the Ascend kernels. Pointers are device memory; functions put work on `stream` (an
// aclrtStream) and return at once: 0, 1 for an argument that they cannot take, 2 for an error of the runtime. They
// check no more than that: csrc/ops does. f32, f16 and bf16 are the storage types; arithmetic is float32. n = 0 is
// fine. The tensors of a list share launches: none may overlap another.
#pragma once

#include <cstdint>

#pragma GCC visibility push(default)
extern "C" {

// Around the launches of an op, on one thread at a time: `begin` makes `device` current, until `end`. The memory that
// kernels may touch in between is what `show` has named: the emulator needs it, on an NPU it does nothing.
int boost_ext_ascend_begin(std::int32_t device);
void boost_ext_ascend_show(const void* memory, std::int64_t bytes);
void boost_ext_ascend_end();
// Device memory for what is enqueued on `stream` before `end`. Every call gets the same one, since a stream does its
// work in order; it grows, and what it has outgrown is kept, since aclrtFree does not wait for work on it.
int boost_ext_ascend_work_memory(std::int64_t bytes, void* stream, void** memory);
int boost_ext_ascend_clear(void* memory, std::int64_t bytes, void* stream);
std::int32_t boost_ext_ascend_cores();     // vector cores of the current device; 0 where there is none
std::int32_t boost_ext_ascend_emulated();  // 1 where the kernels run on the host, for tests

// What a `workspace` must hold for reductions of `values` values (adasum_dots: 3, pca_project: k), in bytes.
std::int64_t boost_ext_ascend_workspace_bytes(std::int64_t values);

// A tensor of boost_ext_optimizer_step_list. masters: float32, or null for all tensors of a list.
struct boost_ext_ascend_step {
  void *weights, *masters;
  const void* grads;
  void *state0, *state1;
  std::int64_t n;
  float scale, l2, lr, decay;
};

#define BOOST_EXT_ASCEND_DECLARE(dtype)                                                                               \
  /* grads <- grads * inv_scale. found: one float32, set to 0 before the first tensor, nan once one is not finite. */ \
  int boost_ext_unscale_and_check_##dtype(void* grads, void* found, float inv_scale, std::int64_t n, void* stream);   \
  int boost_ext_unscale_and_check_list_##dtype(void* const* grads, const std::int64_t* sizes, std::int64_t count,     \
                                               void* found, float inv_scale, void* stream);                           \
  /* dots: <a,b>, |a|^2, |b|^2, float32. */                                                                           \
  int boost_ext_adasum_dots_##dtype(const void* a, const void* b, void* dots, void* workspace, std::int64_t n,        \
                                    void* stream);                                                                    \
  int boost_ext_adasum_combine_##dtype(const void* a, const void* b, const void* dots, void* out, std::int64_t n,     \
                                       void* stream);                                                                 \
  /* out (k,) float32 <- P[:, column : column + n] grad, added to what is there if accumulate. P is (k, columns). */  \
  int boost_ext_pca_project_##dtype(const void* P, const void* grad, void* out, void* workspace, std::int64_t k,      \
                                    std::int64_t columns, std::int64_t column, std::int32_t accumulate,               \
                                    std::int64_t n, void* stream);                                                    \
  /* out_j <- P[:, column : column + n]^T vector_j; vectors (k,) float32, k <= 2048; without vector1 only the first.  \
   */                                                                                                                 \
  int boost_ext_pca_back_project_##dtype(const void* P, const void* vector0, const void* vector1, void* out0,         \
                                         void* out1, std::int64_t k, std::int64_t columns, std::int64_t column,       \
                                         std::int64_t n, void* stream);                                               \
  /* rule: StepRule of tiling.h. masters: float32, or null. hyper: as in csrc/ops/optimizer_step.h. */                \
  int boost_ext_optimizer_step_##dtype(std::int32_t rule, void* weights, void* masters, const void* grads,            \
                                       void* state0, void* state1, float scale, float l2, float lr, float decay,      \
                                       const double* hyper, std::int64_t step, std::int64_t n, void* stream);         \
  int boost_ext_optimizer_step_list_##dtype(std::int32_t rule, const boost_ext_ascend_step* tensors,                  \
                                            std::int64_t count, const double* hyper, std::int64_t step, void* stream);
BOOST_EXT_ASCEND_DECLARE(f32)
BOOST_EXT_ASCEND_DECLARE(f16)
BOOST_EXT_ASCEND_DECLARE(bf16)
#undef BOOST_EXT_ASCEND_DECLARE

// After the last tensor of boost_ext_unscale_and_check: *found <- 1 if it is nan, else 0.
int boost_ext_flag(void* found, void* stream);

// B (k, k), s, y (k,) float32, k <= 192. updated: one float32, 1 or 0.
int boost_ext_bfgs_update_f32(void* B, const void* s, const void* y, void* updated, float eps, std::int64_t k,
                              void* stream);
}
#pragma GCC visibility pop
