#include "ops/global_norm.h"

#include <cmath>
#include <numeric>

namespace boost_ext {

double global_norm(const Context& context, const Views& tensors) {
  const char* op = "global_norm";
  require_cpu(op, {&tensors});
  require_floats(op, {"tensors", tensors});
  std::vector<double> squares(tensors.size());
  BOOST_EXT_CPU(sums_of_squares)(context, tensors, squares.data());
  return std::sqrt(std::accumulate(squares.begin(), squares.end(), 0.0));
}

void global_norm(const Context& context, const Views& tensors, const View& out) {
  const char* op = "global_norm";
  const Device device = require_device(op, {&tensors}, {out});
  require_floats(op, {"tensors", tensors});
  require_result(op, "out", out, DType::f64);
  Overlap overlap(op);
  overlap.reads({"tensors", tensors});
  overlap.writes("out", out);
  overlap.check();
  auto* norm = static_cast<double*>(out.data);
  if (device == Device::cuda) return BOOST_EXT_CUDA(global_norm)(context, tensors, norm);
  *norm = global_norm(context, tensors);
}

}  // namespace boost_ext
