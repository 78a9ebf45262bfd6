// Memory and streams of CUDA devices, for the doors, and whether there are Ascend kernels. A build without CUDA has
// none of them, and one without Ascend says so.
#pragma once

#include "ops/runtime.h"

namespace boost_ext::cuda {

struct Build {
  std::string runtime;  // version of the CUDA runtime, as in "13.0"
  std::vector<std::string> architectures;
  bool emulated = false;  // the kernels run on the host: for tests
};
const Build* build();  // nothing without CUDA
// The cuBLAS that multiplies large matrices, as in "libcublas.so.13"; empty before the first of them, and without one.
std::string blas_in_use();

// Memory of the context's device, in the order of its stream. std::runtime_error for what CUDA says.
void* allocate(const Context& context, std::int64_t bytes);
void release(const Context& context, void* memory) noexcept;
// Waits for the stream: only what a caller asks to see takes this way.
void download(const Context& context, void* host, const void* memory, std::int64_t bytes);
bool is_capturing(const Context& context);
// What is enqueued on `waiting` from now on happens after what is on the context's stream by now. Not where one of them
// is being captured in a graph and the other is not: what happens outside of a graph is the caller's to order.
void order_after(void* waiting, const Context& context);
void try_order_after(void* waiting, const Context& context) noexcept;  // for those who let go of memory
int device_of(const void* memory);

}  // namespace boost_ext::cuda

namespace boost_ext::ascend {

struct Build {
  bool emulated = false;
};
const Build* build();  // nothing without Ascend

}  // namespace boost_ext::ascend
