// cross_entropy and its gradient: of logits with the indices of classes.
//
//   lse[r]     <- log(sum over c of exp(x[r, c]))
//   loss       <- sum over r of lse[r] - x[r, labels[r]], divided by the number of these rows if `mean`
//   dx[r, c]   <- dloss (exp(x[r, c] - lse[r]) - [c = labels[r]]), divided likewise; 0 in rows that do not count
//
// Rows whose label is `ignored` do not count; without any that does a mean is nan, as 0 / 0. Source: Bridle 1990, eq. 4
// and 7 (softmax, and its gradient under this loss).
// x       float32, float16 or bfloat16, (rows, classes)
// labels  int32 (rows,): `ignored`, or 0 <= label < classes
// loss    float32 (1,), lse float32 (rows,): written; float64 sums in a fixed order
// dloss   float32 (1,)
// dx      like x, written
#pragma once

#include "ops/runtime.h"
#include "ops/schema.h"

namespace boost_ext {

inline constexpr Arg kCrossEntropyArgs[] = {array("x", kFloats),
                                            array("labels", kI32),
                                            integer("ignored"),
                                            flag("mean"),
                                            array("loss", kF32, 1).written(),
                                            array("lse", kF32).written()};
inline constexpr Schema kCrossEntropy{"cross_entropy", kCrossEntropyArgs, Devices::cpu};

inline constexpr Arg kCrossEntropyGradientArgs[] = {array("x", kFloats),
                                                    array("labels", kI32),
                                                    array("lse", kF32),
                                                    array("dloss", kF32, 1),
                                                    integer("ignored"),
                                                    flag("mean"),
                                                    array("dx", kFloats).dtypes_of("x").written()};
inline constexpr Schema kCrossEntropyGradient{"cross_entropy_gradient", kCrossEntropyGradientArgs, Devices::cpu};

void cross_entropy(const Context& context, const View& x, const View& labels, std::int64_t ignored, bool mean,
                   const View& loss, const View& lse);
void cross_entropy_gradient(const Context& context, const View& x, const View& labels, const View& lse,
                            const View& dloss, std::int64_t ignored, bool mean, const View& dx);

// The sum of the losses of rows that count; writes lse.
BOOST_EXT_CPU_KERNEL(double, cross_entropy, const Context&, const View& x, const std::int32_t* labels,
                     std::int32_t ignored, float* lse)
BOOST_EXT_CPU_KERNEL(void, cross_entropy_gradient, const Context&, const View& x, const std::int32_t* labels,
                     const float* lse, std::int32_t ignored, float factor, const View& dx)

}  // namespace boost_ext
