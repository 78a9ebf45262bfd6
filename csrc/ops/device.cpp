#include "ops/device.h"

#if !defined(BOOST_EXT_WITH_CUDA)

namespace boost_ext::cuda {

const Build* build() { return nullptr; }
std::string blas_in_use() { return {}; }
void* allocate(const Context&, std::int64_t) { without_cuda(); }
void release(const Context&, void*) noexcept {}
void download(const Context&, void*, const void*, std::int64_t) { without_cuda(); }
bool is_capturing(const Context&) { without_cuda(); }
void order_after(void*, const Context&) { without_cuda(); }
void try_order_after(void*, const Context&) noexcept {}
int device_of(const void*) { without_cuda(); }

}  // namespace boost_ext::cuda

#endif

#if !defined(BOOST_EXT_WITH_ASCEND)

namespace boost_ext::ascend {

const Build* build() { return nullptr; }

}  // namespace boost_ext::ascend

#endif
