#include "ops/orthogonalize.h"

#include <algorithm>

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

MatrixShares share_matrices(int threads, Tensors matrices, std::int64_t steps, std::int64_t* order) {
  constexpr std::int64_t kLarge = std::int64_t{1} << 24, kLeastSide = 128;
  const auto work_of = [&](std::int64_t t) { return matrices[t].size * (4 + steps * least_side(matrices[t]) / 4); };
  std::int64_t total = 0, count = 0;
  for (std::int64_t t = 0; t < matrices.count; ++t) {
    total += work_of(t);
    if (matrices[t].size > 0) order[count++] = t;
  }
  // What is less than a quarter of a thread's share leaves no thread without work for long, and costs no waiting.
  const auto together = [&](std::int64_t t) {
    return least_side(matrices[t]) >= kLeastSide && work_of(t) >= kLarge && work_of(t) * 4 * threads >= total;
  };
  std::int64_t* const end = order + count;
  std::int64_t* const alone = std::stable_partition(order, end, together);
  std::stable_sort(alone, end, [&](std::int64_t a, std::int64_t b) { return work_of(a) > work_of(b); });
  MatrixShares shares{alone - order, count, 0};
  for (const std::int64_t* t = alone; t < end; ++t) shares.work += work_of(*t);
  return shares;
}

}  // namespace boost_ext
