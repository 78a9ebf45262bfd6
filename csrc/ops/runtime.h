// Process-wide facts: how many threads, which instruction set, on neither of which results depend; and how precise
// products of float32 are.
#pragma once

#include <string>
#include <vector>

#include "ops/ieee_modes.h"
#include "ops/tensor.h"

namespace boost_ext {

enum class Isa { baseline, avx2, avx512 };

Isa isa();  // in use: the widest one that was built and that the CPU has
std::vector<std::string> built_isas();
std::vector<std::string> cpu_features();
void set_isa(const std::string& name);  // for tests; std::invalid_argument if not built or not supported
std::string isa_name();

int num_threads();
void set_num_threads(int threads);  // 1 .. 1024
// "highest", or "medium": where the CPU multiplies bfloat16, factors may be rounded to that.
void set_float32_matmul_precision(const std::string& name);  // std::invalid_argument if it is neither
std::string float32_matmul_precision();
bool has_narrow_products();  // whether factors are rounded to bfloat16

Context cpu_context();
std::string compiler();

}  // namespace boost_ext

// The CUDA kernels of an op: `name` enqueues on the context's stream and returns. Every one is declared by
// BOOST_EXT_CUDA_KERNEL in its op's header; a build without CUDA has none, and no array gets as far as to need one.
#if defined(BOOST_EXT_WITH_CUDA)
#define BOOST_EXT_CUDA_KERNEL(name, ...) \
  namespace cuda {                       \
  void name(__VA_ARGS__);                \
  }
#define BOOST_EXT_CUDA(name) cuda::name
#else
namespace boost_ext {
template <class... Arguments> [[noreturn]] void without_cuda(Arguments&&...) {
  throw std::logic_error("boost_ext was built without CUDA kernels");
}
}  // namespace boost_ext
#define BOOST_EXT_CUDA_KERNEL(name, ...)
#define BOOST_EXT_CUDA(name) ::boost_ext::without_cuda
#endif

// The same for Ascend, whose part of an op is in csrc/ascend.
#if defined(BOOST_EXT_WITH_ASCEND)
#define BOOST_EXT_ASCEND_KERNEL(name, ...) \
  namespace ascend {                       \
  void name(__VA_ARGS__);                  \
  }
#define BOOST_EXT_ASCEND(name) ascend::name
#else
namespace boost_ext {
template <class... Arguments> [[noreturn]] void without_ascend(Arguments&&...) {
  throw std::logic_error("boost_ext was built without Ascend kernels");
}
}  // namespace boost_ext
#define BOOST_EXT_ASCEND_KERNEL(name, ...)
#define BOOST_EXT_ASCEND(name) ::boost_ext::without_ascend
#endif

// The kernel `name` of the instruction set in use, to be called at once: IeeeModes live until the call has ended. Every
// kernel is declared by BOOST_EXT_CPU_KERNEL in its op's header.
#if defined(__x86_64__) && !defined(BOOST_EXT_BASELINE_ONLY)
#define BOOST_EXT_X86_ISAS
#endif
#if defined(BOOST_EXT_X86_ISAS)
#define BOOST_EXT_CPU_KERNEL(result, name, ...) \
  namespace cpu {                               \
  namespace baseline {                          \
  result name(__VA_ARGS__);                     \
  }                                             \
  namespace avx2 {                              \
  result name(__VA_ARGS__);                     \
  }                                             \
  namespace avx512 {                            \
  result name(__VA_ARGS__);                     \
  }                                             \
  }
#define BOOST_EXT_CPU(name)                                                                     \
  (::boost_ext::IeeeModes(), ::boost_ext::isa() == ::boost_ext::Isa::avx512 ? cpu::avx512::name \
                             : ::boost_ext::isa() == ::boost_ext::Isa::avx2 ? cpu::avx2::name   \
                                                                            : cpu::baseline::name)
#else
#define BOOST_EXT_CPU_KERNEL(result, name, ...) \
  namespace cpu {                               \
  namespace baseline {                          \
  result name(__VA_ARGS__);                     \
  }                                             \
  }
#define BOOST_EXT_CPU(name) (::boost_ext::IeeeModes(), cpu::baseline::name)
#endif
