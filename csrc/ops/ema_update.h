// ema_update: exponential moving averages of a list of tensors, in one pass over both.
//
//   average[i] <- average[i] + (1 - decay) (w[i] - average[i])
//
// The weights that Polyak & Juditsky, "Acceleration of stochastic approximation by averaging", 1992, and Tarvainen &
// Valpola, "Mean teachers are better role models", NeurIPS 2017, section 2, evaluate in place of the last ones.
// averages  float32, written; no two of them may overlap, and none may overlap a weight
// weights   float32, float16 or bfloat16, of the averages' sizes; the same tensor may be listed more than once
// decay     from 0 to 1; 1 - decay is rounded once, from float64, to float32, as are difference, product and sum
// inf and nan of a weight reach its average and stay there, except with decay 1, which leaves all as it is.
#pragma once

#include "ops/runtime.h"
#include "ops/schema.h"

namespace boost_ext {

inline constexpr Arg kEmaUpdateArgs[] = {arrays("averages", kF32).written().any_order().like("weights"),
                                         arrays("weights", kFloats).any_order(), real("decay")};
inline constexpr Schema kEmaUpdate{"ema_update", kEmaUpdateArgs};

void ema_update(const Context& context, const Views& averages, const Views& weights, double decay);

BOOST_EXT_CPU_KERNEL(void, ema_update, const Context&, Tensors averages, Tensors weights, float rate)

BOOST_EXT_CUDA_KERNEL(ema_update, const Context&, Tensors averages, Tensors weights, float rate)

}  // namespace boost_ext
