// accumulate: add a list of gradients to a list of accumulators, scaled, in one pass over both.
//
//   a[i] <- a[i] + factor * g[i];   with `first`, a[i] <- factor * g[i]
//
// Gradient accumulation over N micro-batches; with factor = 1 / (loss scale * N) the accumulators hold the mean of the
// unscaled gradients after N calls. The product and the sum are each rounded to float32.
// accumulators  float32, written; no two of them may overlap, and none may overlap a gradient
// grads         float32, float16 or bfloat16, of the accumulators' sizes; the same tensor may be listed more than once
// factor        finite in float32
// first         the old values are not read, so that no pass is needed to clear them: inf and nan in them vanish
// inf and nan of a gradient reach its accumulator; unscale_and_check finds them before. Tensors of size 0 are fine.
#pragma once

#include "ops/runtime.h"
#include "ops/schema.h"

namespace boost_ext {

inline constexpr Arg kAccumulateArgs[] = {arrays("accumulators", kF32).written().any_order().like("grads"),
                                          arrays("grads", kFloats).any_order(), real("factor"), flag("first")};
inline constexpr Schema kAccumulate{"accumulate", kAccumulateArgs};

void accumulate(const Context& context, const Views& accumulators, const Views& grads, double factor, bool first);

// With the factor 1 / (scale * steps), and first if none has been counted yet.
inline constexpr Arg kAccumulateMeanArgs[] = {real("scale"), real("steps"), integer("count"),
                                              arrays("accumulators", kF32).written(), arrays("grads", kFloats)};
inline constexpr Schema kAccumulateMean{"accumulate", kAccumulateMeanArgs, Devices::cpu};
void accumulate_mean(const Context& context, double scale, double steps, std::int64_t count, const Views& accumulators,
                     const Views& grads);

// out <- tensors, one behind the other.
inline constexpr Arg kFlattenArgs[] = {arrays("tensors", kFloats), array("out", kF32).written()};
inline constexpr Schema kFlatten{"joined", kFlattenArgs, Devices::cpu};
void flatten(const Context& context, const Views& tensors, const View& out);

BOOST_EXT_CPU_KERNEL(void, accumulate, const Context&, Tensors accumulators, Tensors grads, float factor, bool first)

BOOST_EXT_CUDA_KERNEL(accumulate, const Context&, Tensors accumulators, Tensors grads, float factor, bool first)

}  // namespace boost_ext
