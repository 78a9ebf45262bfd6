// Device memory for the kernels on the emulator: arrays of exactly their size, which kernels may touch.
#pragma once

#include <cstdlib>
#include <vector>

#include "ascend/call.h"
#include "emulators/ascend/core.h"
#include "native/harness.h"

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

#define ASCEND(name, dtype) BOOST_EXT_ASCEND_BY_DTYPE(name, dtype)

inline void set_cores(std::int32_t cores) { emulator::settings.cores = cores; }

}  // namespace native
