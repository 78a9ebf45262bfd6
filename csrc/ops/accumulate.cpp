#include "ops/accumulate.h"

#include <cmath>

namespace boost_ext {

void accumulate(const Context& context, const Views& accumulators, const Views& grads, double factor, bool first) {
  const Device device = check(kAccumulate, accumulators, grads, factor, first);
  const auto narrow = static_cast<float>(factor);
  require(std::isfinite(narrow), kAccumulate.op, ": factor must be finite in float32, got ", factor);
  if (device == Device::cuda) return BOOST_EXT_CUDA(accumulate)(context, accumulators, grads, narrow, first);
  BOOST_EXT_CPU(accumulate)(context, accumulators, grads, narrow, first);
}

}  // namespace boost_ext
