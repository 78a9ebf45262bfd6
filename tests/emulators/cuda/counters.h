// What the two halves of the runtime share.
#pragma once

#include <atomic>
#include <cstdint>

#include "runtime_api.h"

namespace boost_ext::cuda::emulator {

struct Counters {
  std::atomic<std::int64_t> allocations{0}, allocated_bytes{0}, synchronizations{0}, launches{0};
};
Counters& counters();
int device_of(cudaStream_t stream);
bool holds(const void* address, std::size_t bytes);  // memory that is not the device's may be as long as it likes

}  // namespace boost_ext::cuda::emulator
