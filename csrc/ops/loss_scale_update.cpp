#include "ops/loss_scale_update.h"

#include <algorithm>
#include <cmath>

namespace boost_ext {

void loss_scale_update(const Context& context, const View& scale, const View& counters, const Number& overflow,
                       double factor, std::int64_t window, double max_scale) {
  const LossScaleRule rule{factor, window, max_scale};
  const char* op = kLossScaleUpdate.op;
  const Device device = check(kLossScaleUpdate, scale, counters, overflow, factor, window, max_scale);
  require(std::isfinite(rule.factor) && rule.factor > 1, op, ": factor must be finite and > 1, got ", rule.factor);
  require(rule.window >= 1, op, ": window must be >= 1, got ", rule.window);
  require(std::isfinite(rule.max_scale) && rule.max_scale >= 1 && rule.max_scale <= 3.4028234663852886e38, op,
          ": max_scale must be a finite float32 >= 1, got ", rule.max_scale);
  auto* const number = static_cast<float*>(scale.data);
  auto* const counter = static_cast<std::int32_t*>(counters.data);
  if (device == Device::cuda) return BOOST_EXT_CUDA(loss_scale_update)(context, number, counter, overflow, rule);

  // A handful of scalars: no kernel of its own on a CPU.
  float& value = *number;
  require(std::isfinite(value) && value >= 1, op, ": scale must be finite and >= 1, got ", value);
  std::int32_t& iteration = counter[0];
  std::int32_t& last = counter[1];
  std::int32_t& bad = counter[2];
  if (overflow.value != 0) {
    value = static_cast<float>(std::max(value / rule.factor, 1.0));
    last = iteration;
    ++bad;
  } else {
    bad = 0;
    if (iteration - last >= rule.window) {
      value = static_cast<float>(std::min(value * rule.factor, rule.max_scale));
      last = iteration;
    }
  }
  ++iteration;
  if (bad > kMaxConsecutiveOverflows) {
    throw std::runtime_error(text(op, ": ", bad, " overflows in a row at loss scale ", value,
                                  "; the network or its inputs produce inf or nan whatever the scale"));
  }
}

}  // namespace boost_ext
