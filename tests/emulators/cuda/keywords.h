// CUDA's keywords for a C++ compiler. What follows them is ordinary C++.
//
// __shared__ makes a variable of the launching thread of the operating system: blocks run one after the other on it,
// and several threads may launch at the same time. Hence `extern __shared__`, memory whose size the launch decides, is
// not there. Nobody can find these variables to fill them before a block (the section attribute is ignored in
// templates): what a block leaves in them, the next one finds, as on the device. Where accesses are watched (watch.h),
// to read it is an error.
#pragma once

// Before the keywords, one of which these use as the name of an attribute.
#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __constant__
#define __grid_constant__ &  // behind the type: one for all threads; a copy of up to 32 KiB for each would take longest
#define __launch_bounds__(...)
#define __forceinline__ inline  // and no more: with all in one function the kernels took seven times as long to compile
#define __noinline__ __attribute__((noinline))
#define __shared__ static thread_local
