// Device memory for the kernels on the emulator: arrays of exactly their size, which kernels may touch.
#pragma once

#include <cstdlib>
#include <vector>

#include "boost_ext_ascend.h"
#include "emulator/core.h"
#include "native/harness.h"
#include "ops/runtime.h"

namespace native {

struct Device {
  explicit Device(const Array& a) : region(a.data(), a.bytes()) {}
  emulator::Region region;
};

// Aligned as device memory is.
class Workspace {
 public:
  explicit Workspace(std::int64_t values)
      : memory_(static_cast<std::size_t>(boost_ext_ascend_workspace_bytes(values) / 4), NAN),
        region_(memory_.data(), boost_ext_ascend_workspace_bytes(values)) {}
  void* data() { return memory_.data(); }

 private:
  std::vector<float> memory_;
  emulator::Region region_;
};

constexpr DType kStorage[] = {DType::f32, DType::f16, DType::bf16};

// The function of the C ABI for a dtype.
#define ASCEND(name, dtype)                         \
  ((dtype) == DType::f32   ? boost_ext_##name##_f32 \
   : (dtype) == DType::f16 ? boost_ext_##name##_f16 \
                           : boost_ext_##name##_bf16)

}  // namespace native
