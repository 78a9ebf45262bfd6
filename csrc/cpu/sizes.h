// Arithmetic of sizes.
#pragma once

#include <cstdint>

namespace boost_ext::cpu::BOOST_EXT_ISA {

inline constexpr std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
inline constexpr std::int64_t larger(std::int64_t a, std::int64_t b) { return a < b ? b : a; }
inline constexpr std::int64_t quotient_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
inline constexpr std::int64_t up_to(std::int64_t multiple, std::int64_t n) {
  return quotient_up(n, multiple) * multiple;
}

}  // namespace boost_ext::cpu::BOOST_EXT_ISA
