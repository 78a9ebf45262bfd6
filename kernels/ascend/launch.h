// How the .asc files launch a kernel; the tests launch the same files on the emulator.
#pragma once

#include "boost_ext_ascend.h"
#include "kernel_operator.h"
#include "tiling.h"

#ifdef BOOST_EXT_ASCEND_EMULATOR
#define KERNEL_TASK_TYPE_DEFAULT(type)
#define BOOST_EXT_LAUNCH(kernel, cores, stream, ...) \
  (::emulator::last_stream = (stream), ::emulator::launch(cores, [=] { kernel(__VA_ARGS__); }))
#else
#define BOOST_EXT_LAUNCH(kernel, cores, stream, ...) kernel<<<cores, nullptr, stream>>>(__VA_ARGS__)
#endif

namespace boost_ext::ascend {

constexpr int kDone = 0;
constexpr int kRefused = 1;
constexpr int kRuntimeError = 2;

inline std::int32_t vector_cores() { return boost_ext_ascend_cores(); }
inline bool clear(void* memory, std::int64_t bytes, void* stream) {
  return boost_ext_ascend_clear(memory, bytes, stream) == kDone;
}
inline std::uint8_t* address(const void* p) { return static_cast<std::uint8_t*>(const_cast<void*>(p)); }

}  // namespace boost_ext::ascend
