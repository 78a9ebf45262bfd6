// See ops/loss_scale_update.h.
#include "common.cuh"
#include "ops/loss_scale_update.h"

namespace boost_ext::cuda {
namespace {

__global__ void update_scale(float* scale, std::int32_t* counters, Scalar overflow, LossScaleRule rule) {
  const std::int32_t iteration = counters[0];
  const float value = *scale;
  counters[0] = iteration + 1;
  if (overflow.get() != 0) {
    const double less = value / rule.factor;
    *scale = static_cast<float>(less < 1.0 ? 1.0 : less);
    counters[1] = iteration;
    ++counters[2];
    return;
  }
  counters[2] = 0;
  if (iteration - counters[1] < rule.window) return;
  const double more = value * rule.factor;
  *scale = static_cast<float>(rule.max_scale < more ? rule.max_scale : more);
  counters[1] = iteration;
}

}  // namespace

void loss_scale_update(const Context& context, float* scale, std::int32_t* counters, const Number& overflow,
                       const LossScaleRule& rule) {
  const OnDevice device(context);
  launch(context, update_scale, 1, 1, scale, counters, Scalar(overflow), rule);
}

}  // namespace boost_ext::cuda
