// The C ABI of the Ascend kernels. Pointers are device memory, a tensor a launch; functions put work on `stream` (an
// aclrtStream) and return at once: 0, 1 for an argument that they cannot take, 2 for an error of the runtime. They
// check no more than that: csrc/ops does. f32, f16 and bf16 are the storage types; arithmetic is float32. n = 0 is
// fine.
#pragma once

#include <cstdint>

extern "C" {

// What a `workspace` must hold for reductions of `values` values (adasum_dots: 3, pca_project: k), in bytes.
std::int64_t boost_ext_ascend_workspace_bytes(std::int64_t values);

#define BOOST_EXT_ASCEND_DECLARE(dtype)                                                                               \
  /* grads <- grads * inv_scale. found: one float32, set to 0 before the first tensor, nan once one is not finite. */ \
  int boost_ext_unscale_and_check_##dtype(void* grads, void* found, float inv_scale, std::int64_t n, void* stream);   \
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
                                       const double* hyper, std::int64_t step, std::int64_t n, void* stream);
BOOST_EXT_ASCEND_DECLARE(f32)
BOOST_EXT_ASCEND_DECLARE(f16)
BOOST_EXT_ASCEND_DECLARE(bf16)
#undef BOOST_EXT_ASCEND_DECLARE

// B (k, k), s, y (k,) float32, k <= 192. updated: one float32, 1 or 0.
int boost_ext_bfgs_update_f32(void* B, const void* s, const void* y, void* updated, float eps, std::int64_t k,
                              void* stream);
}
