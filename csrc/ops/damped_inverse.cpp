#include "ops/damped_inverse.h"

#include <algorithm>
#include <cmath>

#include "ops/covariance.h"

namespace boost_ext {
namespace {

// b of a batch (m, b, b); 0 for a diagonal.
std::int64_t extent_of(const Name& name, const View& v) {
  if (v.ndim == 1) return 0;
  std::int64_t b = 0;
  if (v.ndim == 3 && v.rows > 0) {
    while ((b + 1) * (b + 1) * v.rows <= v.size) ++b;
  }
  require(b > 0 && b * b * v.rows == v.size, kDampedInverse.op, ": ", name,
          " must have shape (batch, b, b) or (d,), got ", v.ndim, " axes, ", v.rows, " rows and ", v.size, " elements");
  return b;
}

void require_numbers(const char* arg, const std::vector<double>& values, std::size_t count) {
  require(values.size() == count, kDampedInverse.op, ": ", arg, " must hold ", count, " numbers, got ", values.size());
  for (double value : values) {
    require_finite(kDampedInverse.op, arg, value);
    require(value >= 0, kDampedInverse.op, ": ", arg, " must be >= 0, got ", value);
  }
}

}  // namespace

void damped_inverse(const Context& context, const Views& matrices, const std::vector<double>& factor,
                    const std::vector<double>& damping, const Views& out, const View& inverted) {
  const Device device = check(kDampedInverse, matrices, factor, damping, out, inverted);
  require_numbers("factor", factor, matrices.size());
  require_numbers("damping", damping, matrices.size());
  std::vector<std::int64_t> extent;
  for (std::size_t i = 0; i < matrices.size(); ++i) {
    const Name name("matrices", static_cast<std::int64_t>(i)), result("out", static_cast<std::int64_t>(i));
    extent.push_back(extent_of(name, matrices[i]));
    require(extent_of(result, out[i]) == extent.back(), kDampedInverse.op, ": ", result, " must have the shape of ",
            name, ", got another one");
  }
  auto* flag = static_cast<float*>(inverted.data);
  if (device == Device::cuda) {
    return BOOST_EXT_CUDA(damped_inverse)(context, matrices, extent.data(), factor.data(), damping.data(), out, flag);
  }
  const bool all = BOOST_EXT_CPU(damped_inverse)(context, matrices, extent.data(), factor.data(), damping.data(), out);
  *flag = all ? 1.0F : 0.0F;
}

void layer_inverses(const Context& context, std::int64_t step, bool skip, std::int64_t frequency, double own_scale,
                    double scale, const View& damping, const Views& A, const Views& G, const Views& A_inverse,
                    const Views& G_inverse, const View& inverted) {
  require(step >= 0, kDampedInverse.op, ": step must be >= 0, got ", step);
  require_dtype(kDampedInverse.op, "damping", damping, DType::f32);
  require(damping.size >= 1, kDampedInverse.op, ": damping must hold at least one number, got none");
  *static_cast<float*>(inverted.data) = 1;
  if (skip || !is_due(step, frequency)) return;
  const std::int64_t at = std::min(step, damping.size - 1);
  const double root = std::sqrt(static_cast<double>(static_cast<const float*>(damping.data)[at]));
  const double whole = own_scale * scale;
  Views matrices = A, out = A_inverse;
  matrices.insert(matrices.end(), G.begin(), G.end());
  out.insert(out.end(), G_inverse.begin(), G_inverse.end());
  std::vector<double> factors(A.size(), 1.0);
  factors.resize(matrices.size(), 1 / (whole * whole));
  damped_inverse(context, matrices, factors, std::vector<double>(matrices.size(), root), out, inverted);
}

}  // namespace boost_ext
