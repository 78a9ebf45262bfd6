// What these tests are written with: a kernel written in place, and an array that only kernels and copies touch.
#pragma once

#include <vector>

#include "cuda_runtime.h"
#include "native/harness.h"

namespace native {

namespace emulator = boost_ext::cuda::emulator;

template <class F> __global__ void call(const F* f) { (*f)(); }
template <class F> void run(dim3 grid, dim3 block, const F& f) { emulator::launch(grid, block, nullptr, call<F>, &f); }

inline unsigned rank() { return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z); }

// The text of the error of a launch, without the orders it ran in.
template <class F> std::string mistake(dim3 grid, dim3 block, const F& f) {
  try {
    run(grid, block, f);
  } catch (const std::logic_error& e) {
    const std::string text = e.what();
    return text.substr(0, text.find(" (seed "));
  }
  return "nothing";
}
inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace native
