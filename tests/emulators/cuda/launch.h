// kernel<<<grid, block, 0, stream>>>(arguments...), for a C++ compiler: launch(grid, block, stream, kernel,
// arguments...).
#pragma once

#include <cstddef>
#include <tuple>
#include <utility>

#include "block.h"
#include "runtime_api.h"

namespace boost_ext::cuda::emulator {

constexpr std::size_t kMaxParameterBytes = 32764;

// Where the parameters of a kernel end, each at a multiple of its alignment.
template <class... Parameters> constexpr std::size_t parameter_bytes() {
  std::size_t end = 0;
  ((end = (end + alignof(Parameters) - 1) / alignof(Parameters) * alignof(Parameters) + sizeof(Parameters)), ...);
  return end;
}

// Whether the device takes such a launch; if not, the last error says so.
inline bool accepted(dim3 grid, dim3 block, cudaStream_t stream) {
  const auto within = [](dim3 d, unsigned x, unsigned y, unsigned z) {
    return d.x > 0 && d.y > 0 && d.z > 0 && d.x <= x && d.y <= y && d.z <= z;
  };
  if (!within(grid, 0x7fffffff, 65535, 65535) || !within(block, 1024, 1024, 64) ||
      std::size_t{block.x} * block.y * block.z > 1024) {
    result(cudaErrorInvalidConfiguration);
    return false;
  }
  if (!usable(stream)) {
    result(cudaErrorInvalidResourceHandle);
    return false;
  }
  return true;
}

// The kernel has run when this returns. What the device refuses is returned, sets the last error, and nothing runs;
// what a kernel does wrong (block.h says what) is thrown as std::logic_error, and the rest of the launch does not run.
template <class... Parameters, class... Arguments>
cudaError_t launch(dim3 grid, dim3 block, cudaStream_t stream, void (*kernel)(Parameters...),
                   Arguments&&... arguments) {
  static_assert(parameter_bytes<Parameters...>() <= kMaxParameterBytes, "nvcc refuses as many bytes of parameters");
  static_assert((std::is_trivially_copyable_v<std::decay_t<Parameters>> && ...), "parameters are copied byte by byte");
  if (!accepted(grid, block, stream)) return cudaPeekAtLastError();
  count_launch(reinterpret_cast<const void*>(kernel));
  using Values = std::tuple<std::decay_t<Parameters>...>;
  using Call = std::pair<void (*)(Parameters...), Values>;
  Call call{kernel, Values(static_cast<std::decay_t<Parameters>>(std::forward<Arguments>(arguments))...)};
  run(
      grid, block,
      [](void* data) {
        const auto& c = *static_cast<const Call*>(data);
        std::apply(c.first, c.second);
      },
      &call);
  return cudaSuccess;
}

}  // namespace boost_ext::cuda::emulator
