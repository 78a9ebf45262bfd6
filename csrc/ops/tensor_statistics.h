// tensor_statistics: six numbers about each tensor of a list, in one read: is it finite, how large, how much of it is
// 0.
//
// tensors  float32, float16 or bfloat16, any shapes; only read. A tensor may be listed more than once
// scale    finite and > 0, what the tensors were multiplied with: the loss scale of gradients, or 1
// out      float64 (tensors, 6), written. The row of a tensor:
//            inf, nan   how many elements are infinite, and how many are not a number
//            first      the index of the first of either (row-major), or -1
//            largest    the largest finite |x| / scale; 0 if there is none
//            zeros      how many elements are 0 or -0
//            squares    the sum of (x / scale)^2 over the finite elements
// inf, nan, first and largest are those of unscale_and_check with a report. Squares are summed in float64, blocks of
// 16384 in order; a backend may first add four squares of half precision in float32, as global_norm says. An element
// that is inf or nan counts as 0 there. No elements: 0, 0, -1, 0, 0, 0.
#pragma once

#include "ops/runtime.h"
#include "ops/schema.h"

namespace boost_ext {

constexpr std::int64_t kStatistics = 6;  // numbers of a row

inline constexpr Arg kTensorStatisticsArgs[] = {arrays("tensors", kFloats).any_order(),
                                                number("scale", Range::positive), array("out", kF64).made(kStatistics)};
inline constexpr Schema kTensorStatistics{"tensor_statistics", kTensorStatisticsArgs};

// Of elements as they are stored, with the scale.
struct Statistics {
  std::int64_t inf = 0;
  std::int64_t nan = 0;
  std::int64_t first = -1;
  std::int64_t zeros = 0;
  float largest = 0;
  double squares = 0;
};

void tensor_statistics(const Context& context, const Views& tensors, const Number& scale, const View& out);

BOOST_EXT_CPU_KERNEL(void, tensor_statistics, const Context&, Tensors tensors, Statistics* per_tensor)

BOOST_EXT_CUDA_KERNEL(tensor_statistics, const Context&, Tensors tensors, const Number& scale, double* rows)

}  // namespace boost_ext
