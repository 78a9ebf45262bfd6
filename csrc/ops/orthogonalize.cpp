#include "ops/orthogonalize.h"

namespace boost_ext {

void orthogonalize(const Context& context, const Views& matrices, const Views& out, std::int64_t steps, double eps) {
  const Device device = check(kOrthogonalize, matrices, out, steps, eps);
  require(steps >= 0, kOrthogonalize.op, ": steps must be >= 0, got ", steps);
  if (device == Device::cuda) return BOOST_EXT_CUDA(orthogonalize)(context, matrices, out, steps, eps, false);
  BOOST_EXT_CPU(orthogonalize)(context, matrices, out, steps, eps);
}

std::int64_t least_side(const View& v) {
  const std::int64_t columns = v.rows > 0 ? v.size / v.rows : 0;
  return v.rows < columns ? v.rows : columns;
}
std::int64_t work_of(const View& v, std::int64_t steps) { return v.size * (4 + steps * least_side(v) / 4); }
bool shared_by_threads(const View& v) { return least_side(v) * v.size >= std::int64_t{1} << 24; }

}  // namespace boost_ext
