#include "ops/loss_scale_update.h"

#include <algorithm>
#include <cmath>

namespace boost_ext {

void loss_scale_update(const View& scale, const View& counters, bool overflow, const LossScaleRule& rule) {
  const char* op = "loss_scale_update";
  require_cpu(op, {}, {scale, counters});
  require_dtype(op, "scale", scale, DType::f32);
  require_size(op, "scale", scale, 1);
  require_writable(op, "scale", scale);
  require_dtype(op, "counters", counters, DType::i32);
  require_size(op, "counters", counters, 3);
  require_writable(op, "counters", counters);
  require(std::isfinite(rule.factor) && rule.factor > 1, op, ": factor must be finite and > 1, got ", rule.factor);
  require(rule.window >= 1, op, ": window must be >= 1, got ", rule.window);
  require(std::isfinite(rule.max_scale) && rule.max_scale >= 1 && rule.max_scale <= 3.4028234663852886e38, op,
          ": max_scale must be a finite float32 >= 1, got ", rule.max_scale);
  Overlap overlap(op);
  overlap.writes("scale", scale);
  overlap.writes("counters", counters);
  overlap.check();

  // A handful of scalars: no kernel of its own on a CPU.
  float& value = *static_cast<float*>(scale.data);
  require(std::isfinite(value) && value >= 1, op, ": scale must be finite and >= 1, got ", value);
  auto* const counter = static_cast<std::int32_t*>(counters.data);
  std::int32_t& iteration = counter[0];
  std::int32_t& last = counter[1];
  std::int32_t& bad = counter[2];
  if (overflow) {
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
