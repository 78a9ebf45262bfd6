#include "ops/global_norm.h"

#include <cmath>
#include <numeric>

namespace boost_ext {

double global_norm(const Context& context, const Views& tensors) {
  const char* op = "global_norm";
  require_backend(op, {&tensors});
  require_floats(op, {"tensors", tensors});
  std::vector<double> squares(tensors.size());
  BOOST_EXT_CPU(sums_of_squares)(context, tensors, squares.data());
  return std::sqrt(std::accumulate(squares.begin(), squares.end(), 0.0));
}

}  // namespace boost_ext
