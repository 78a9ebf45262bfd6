// How the .asc files launch a kernel; the tests launch the same files on the emulator.
//
// A macro that writes kernels gets their names whole, never pasted together: CANN's compiler looks a kernel up by the
// place where its name is written, and what it does not find it takes for one that needs cube cores, too.
#pragma once

#include "boost_ext_ascend.h"
#include "kernel_operator.h"
#include "tiling.h"

#ifdef BOOST_EXT_ASCEND_EMULATOR
#define KERNEL_TASK_TYPE_DEFAULT(type)
#define BOOST_EXT_LAUNCH(kernel, cores, stream, ...)                                    \
  (::emulator::expect_plain_arguments(__VA_ARGS__), ::emulator::streams.insert(stream), \
   ::emulator::launch(cores, [=] { kernel(__VA_ARGS__); }))
#else
// The second one is a pointer in some versions of CANN, and a size in later ones.
#define BOOST_EXT_LAUNCH(kernel, cores, stream, ...) kernel<<<cores, 0, stream>>>(__VA_ARGS__)
#endif

namespace boost_ext::ascend {

constexpr int kDone = 0;
constexpr int kRefused = 1;
constexpr int kRuntimeError = 2;

inline std::int32_t vector_cores() { return boost_ext_ascend_cores(); }
// As a table has it.
inline std::uint64_t number(const void* p) { return reinterpret_cast<std::uintptr_t>(p); }
inline std::uint8_t* address(const void* p) { return static_cast<std::uint8_t*>(const_cast<void*>(p)); }

}  // namespace boost_ext::ascend
