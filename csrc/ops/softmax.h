// softmax and its gradient, of rows.
//
//   y[r]  <- exp(x[r] - max(x[r])) / sum of exp(x[r] - max(x[r]))
//   dx[r] <- y[r] (dy[r] - sum of dy[r] y[r])
//
// Bridle 1990, eq. 4, and its derivative. A row of -inf alone, or with +inf or nan, becomes nan.
// x, y, dy, dx  float32 (rows, n), n > 0; y and dx written
// Sums are float64, in a fixed order.
#pragma once

#include "ops/runtime.h"
#include "ops/schema.h"

namespace boost_ext {

inline constexpr Arg kSoftmaxArgs[] = {array("x", kF32), array("y", kF32).written()};
inline constexpr Schema kSoftmax{"softmax", kSoftmaxArgs, Devices::cpu};

inline constexpr Arg kSoftmaxGradientArgs[] = {array("dy", kF32), array("y", kF32), array("dx", kF32).written()};
inline constexpr Schema kSoftmaxGradient{"softmax_gradient", kSoftmaxGradientArgs, Devices::cpu};

void softmax(const Context& context, const View& x, const View& y);
void softmax_gradient(const Context& context, const View& dy, const View& y, const View& dx);

BOOST_EXT_CPU_KERNEL(void, softmax, const Context&, std::int64_t rows, std::int64_t n, const float* x, float* y)
BOOST_EXT_CPU_KERNEL(void, softmax_gradient, const Context&, std::int64_t rows, std::int64_t n, const float* dy,
                     const float* y, float* dx)

}  // namespace boost_ext
