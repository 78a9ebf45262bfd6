// loss_scale_update: the next loss scale after a step, in place.
//
//   overflow:     scale <- max(scale / factor, 1),    last <- iteration,   bad <- bad + 1
//   otherwise:    bad <- 0; after each `window` steps since `last`:
//                 scale <- min(scale * factor, max_scale), last <- iteration
//   in any case:  iteration <- iteration + 1
//
// The rule of mindspore's DynamicLossScaleManager, with a bound above. Micikevicius et al., "Mixed precision training",
// ICLR 2018, section 3.2.
// scale     one float32, finite and >= 1, written
// counters  (3,) int32, written: iteration (from 1), last overflow or growth, consecutive overflows
// overflow  known to the caller; or one float32 on the device of the others: other than 0, as unscale_and_check leaves
//           it in `found`
// More than 1000 overflows in a row: std::runtime_error, since such a training does not train. On a device nobody is
// told, since nobody waits: counters[2] says it to whoever reads it. Nor is the scale checked there.
#pragma once

#include "ops/runtime.h"
#include "ops/schema.h"

namespace boost_ext {

constexpr std::int32_t kMaxConsecutiveOverflows = 1000;

struct LossScaleRule {
  double factor;
  std::int64_t window;
  double max_scale;
};
inline constexpr Arg kLossScaleUpdateArgs[] = {array("scale", kF32, 1).written(),
                                               array("counters", kI32, 3).written(),
                                               number("overflow", Range::any),
                                               real("factor", Range::any),
                                               integer("window"),
                                               real("max_scale", Range::any)};
inline constexpr Schema kLossScaleUpdate{"loss_scale_update", kLossScaleUpdateArgs};
void loss_scale_update(const Context& context, const View& scale, const View& counters, const Number& overflow,
                       double factor, std::int64_t window, double max_scale);

BOOST_EXT_CUDA_KERNEL(loss_scale_update, const Context&, float* scale, std::int32_t* counters, const Number& overflow,
                      const LossScaleRule& rule)

}  // namespace boost_ext
