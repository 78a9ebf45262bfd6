// row_sum: the gradient of what was added to all rows.
//
//   out <- sum over r of x[r]
//
// x    float32, float16 or bfloat16, (rows, n)
// out  float32 (n,), written; float32 sums of 64 rows, and float64 beyond, in a fixed order
#pragma once

#include "ops/runtime.h"
#include "ops/schema.h"

namespace boost_ext {

inline constexpr Arg kRowSumArgs[] = {array("x", kFloats), array("out", kF32).written()};
inline constexpr Schema kRowSum{"row_sum", kRowSumArgs, Devices::cpu};

void row_sum(const Context& context, const View& x, const View& out);

BOOST_EXT_CPU_KERNEL(void, row_sum, const Context&, const View& x, float* out)

}  // namespace boost_ext
