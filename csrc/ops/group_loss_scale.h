// group_loss_scale: one loss scale for each group of layers. Two functions, the guard of a step and its last act.
//
// group_unscale_and_check: unscale_and_check with the scale of each gradient's group, in place
//   g[i] <- g[i] * (1 / scales[groups[i]]);   found[k] = 1 if some gradient of group k holds inf or nan, else 0;
//   -1 if no gradient belongs to it
// group_loss_scale_update: the scales after it, in place
//   found[k] = 1:  scales[k] <- max(scales[k] / sqrt(2), 1)
//   found[k] = 0:  scales[k] <- min(scales[k] * 2^(1/1000), max_scale)
//   otherwise it stays;   overflows <- 0 if no group was found to overflow, else overflows + 1
//
// The rule of mindspore.boost's GroupLossScaleManager, with bounds. Idea: Zhao et al., "Adaptive loss scaling for mixed
// precision training", 2019 (arXiv:1910.12385): layers need scales of their own.
// groups     (tensors,) int32, from 0 to the number of scales - 1
// scales     one float32 each, finite and >= 1; written by the update only
// found      (groups,) int32, written by the guard
// report     (tensors, 4) float64, written: see unscale_and_check
// overflows  one int32: steps in a row with an overflow; more than 1000: std::runtime_error, since such a training does
//            not train
// A gradient listed more than once is one tensor if its places are in one group; overlaps of groups are refused.
#pragma once

#include "ops/unscale_and_check.h"

namespace boost_ext {

inline constexpr Arg kGroupUnscaleAndCheckArgs[] = {array("groups", kI32),
                                                    array("found", kI32).written(),
                                                    array("report", kF64).written(),
                                                    arrays("scales", kF32, 1).one_each("found"),
                                                    arrays("grads", kFloats).written().repeatable(),
                                                    answer("out", kF32)};
inline constexpr Schema kGroupUnscaleAndCheck{"group_unscale_and_check", kGroupUnscaleAndCheckArgs, Devices::cpu};

inline constexpr Arg kGroupLossScaleUpdateArgs[] = {real("max_scale", Range::any),
                                                    array("overflows", kI32, 1).written(), array("found", kI32),
                                                    arrays("scales", kF32, 1).written()};
inline constexpr Schema kGroupLossScaleUpdate{"group_loss_scale_update", kGroupLossScaleUpdateArgs, Devices::cpu};

// out: one float32, 1 if some group overflowed, else 0.
void group_unscale_and_check(const Context& context, const View& groups, const View& found, const View& report,
                             const Views& scales, const Views& grads, const View& out);
void group_loss_scale_update(const Context& context, double max_scale, const View& overflows, const View& found,
                             const Views& scales);

}  // namespace boost_ext
