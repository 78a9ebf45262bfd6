#include "ops/global_norm.h"

#include <cmath>
#include <numeric>

namespace boost_ext {

void global_norm(const Context& context, const Views& tensors, const View& out) {
  const Device device = check(kGlobalNorm, tensors, out);
  auto* norm = static_cast<double*>(out.data);
  if (device == Device::cuda) return BOOST_EXT_CUDA(global_norm)(context, tensors, norm);
  *norm = norm_of(context, tensors);
}

double norm_of(const Context& context, const Views& tensors) {
  std::vector<double> squares(tensors.size());
  BOOST_EXT_CPU(sums_of_squares)(context, tensors, squares.data());
  return std::sqrt(std::accumulate(squares.begin(), squares.end(), 0.0));
}

}  // namespace boost_ext
