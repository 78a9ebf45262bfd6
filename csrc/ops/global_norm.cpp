#include "ops/global_norm.h"

#include <cmath>

namespace boost_ext {

double global_norm(const Context& context, const Views& tensors) {
  const char* op = "global_norm";
  require_backend(op, {&tensors});
  require_floats(op, {"tensors", tensors});
  return std::sqrt(BOOST_EXT_CPU(sum_of_squares)(context, tensors));
}

}  // namespace boost_ext
