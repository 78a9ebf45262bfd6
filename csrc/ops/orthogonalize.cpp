#include "ops/orthogonalize.h"

namespace boost_ext {

void orthogonalize(const Context& context, const Views& matrices, const Views& out, std::int64_t steps, double eps) {
  const Device device = check(kOrthogonalize, matrices, out, steps, eps);
  require(steps >= 0, kOrthogonalize.op, ": steps must be >= 0, got ", steps);
  if (device == Device::cuda) return BOOST_EXT_CUDA(orthogonalize)(context, matrices, out, steps, eps);
  BOOST_EXT_CPU(orthogonalize)(context, matrices, out, steps, eps);
}

}  // namespace boost_ext
