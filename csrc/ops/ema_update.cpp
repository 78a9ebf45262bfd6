#include "ops/ema_update.h"

namespace boost_ext {

void ema_update(const Context& context, const Views& averages, const Views& weights, double decay) {
  const Device device = check(kEmaUpdate, averages, weights, decay);
  require(decay >= 0 && decay <= 1, kEmaUpdate.op, ": decay must be from 0 to 1, got ", decay);
  const auto rate = static_cast<float>(1 - decay);
  if (rate == 0) return;
  if (device == Device::cuda) return BOOST_EXT_CUDA(ema_update)(context, averages, weights, rate);
  BOOST_EXT_CPU(ema_update)(context, averages, weights, rate);
}

}  // namespace boost_ext
