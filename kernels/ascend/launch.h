// How the .asc files launch a kernel; the tests launch the same files on the emulator.
#pragma once

#include "boost_ext_ascend.h"
#include "kernel_operator.h"
#include "tiling.h"

#ifdef BOOST_EXT_ASCEND_EMULATOR

#define KERNEL_TASK_TYPE_DEFAULT(type)
#define BOOST_EXT_LAUNCH(kernel, cores, stream, ...) \
  ((void)(stream), ::emulator::launch(cores, [=] { kernel(__VA_ARGS__); }))

namespace boost_ext::ascend {
inline std::int32_t emulated_cores = 4;
inline std::int32_t vector_cores() { return emulated_cores; }
inline bool clear(void* memory, std::int64_t bytes, void*) {
  std::memset(memory, 0, static_cast<std::size_t>(bytes));
  return true;
}
}  // namespace boost_ext::ascend

#else

#include "acl/acl.h"

#define BOOST_EXT_LAUNCH(kernel, cores, stream, ...) kernel<<<cores, nullptr, stream>>>(__VA_ARGS__)

namespace boost_ext::ascend {
// 0 where no device is set.
inline std::int32_t vector_cores() {
  std::int32_t device = 0;
  std::int64_t count = 0;
  if (aclrtGetDevice(&device) != ACL_SUCCESS) return 0;
  if (aclrtGetDeviceInfo(static_cast<std::uint32_t>(device), ACL_DEV_ATTR_VECTOR_CORE_NUM, &count) != ACL_SUCCESS) {
    return 0;
  }
  return static_cast<std::int32_t>(count);
}
inline bool clear(void* memory, std::int64_t bytes, void* stream) {
  const auto size = static_cast<std::size_t>(bytes);
  return aclrtMemsetAsync(memory, size, 0, size, stream) == ACL_SUCCESS;
}
}  // namespace boost_ext::ascend

#endif

namespace boost_ext::ascend {

constexpr int kDone = 0;
constexpr int kRefused = 1;
constexpr int kRuntimeError = 2;

inline std::uint8_t* address(const void* p) { return static_cast<std::uint8_t*>(const_cast<void*>(p)); }

}  // namespace boost_ext::ascend
