// How many bytes ahead of what they read the loops of the CPU ask for memory: known when the module is loaded.
#pragma once

#include <cstdint>

namespace boost_ext::cpu {

extern const std::uintptr_t read_ahead_bytes;

}  // namespace boost_ext::cpu
