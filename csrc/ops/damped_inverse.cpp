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

bool layer_inverses(const Context& context, const InverseSettings& s, const Views& matrices, const Views& out) {
  require(s.step >= 0, kDampedInverse.op, ": step must be >= 0, got ", s.step);
  require_dtype(kDampedInverse.op, "damping", s.damping, DType::f32);
  require(s.damping.size >= 1, kDampedInverse.op, ": damping must hold at least one number, got none");
  if (s.skip || !is_due(s.step, s.frequency)) return true;
  const std::int64_t at = std::min<std::int64_t>(s.step, s.damping.size - 1);
  const double damping = std::sqrt(static_cast<double>(static_cast<const float*>(s.damping.data)[at]));
  const double scale = s.own_scale * s.scale;
  std::vector<double> factors(matrices.size() / 2, 1.0);
  factors.resize(matrices.size(), 1 / (scale * scale));
  float inverted = 0;
  damped_inverse(context, matrices, factors, std::vector<double>(matrices.size(), damping), out, view_of(inverted));
  return inverted != 0;
}

}  // namespace boost_ext
