#include "ops/layer_norm.h"

namespace boost_ext {
namespace {

// What has so many elements, or std::invalid_argument.
float* floats(const char* op, const char* name, const View& v, std::int64_t size) {
  require_size(op, name, v, size);
  return static_cast<float*>(v.data);
}

void require_matrix(const char* op, const char* name, const View& v) {
  require(v.ndim == 2 && v.width > 0, op, ": ", name, " must have two axes, the last of one element or more, got ",
          v.ndim, " axes and ", v.size, " elements");
}

}  // namespace

void layer_norm(const Context& context, const View& x, const View& gamma, const View& beta, double epsilon, const View& y,
                const View& mean, const View& rstd) {
  const char* op = kLayerNorm.op;
  check(kLayerNorm, x, gamma, beta, epsilon, y, mean, rstd);
  require_matrix(op, "x", x);
  require_size(op, "y", y, x.size);
  const float *scale = floats(op, "gamma", gamma, x.width), *shift = floats(op, "beta", beta, x.width);
  float *of_rows = floats(op, "mean", mean, x.rows), *factors = floats(op, "rstd", rstd, x.rows);
  BOOST_EXT_CPU(layer_norm)(context, x, scale, shift, epsilon, y, of_rows, factors);
}

void layer_norm_gradient(const Context& context, const View& dy, const View& x, const View& mean, const View& rstd,
                         const View& gamma, const View& dx, const View& dgamma, const View& dbeta) {
  const char* op = kLayerNormGradient.op;
  check(kLayerNormGradient, dy, x, mean, rstd, gamma, dx, dgamma, dbeta);
  require_matrix(op, "x", x);
  require_size(op, "dy", dy, x.size);
  require_size(op, "dx", dx, x.size);
  const float *of_rows = floats(op, "mean", mean, x.rows), *factors = floats(op, "rstd", rstd, x.rows);
  const float* scale = floats(op, "gamma", gamma, x.width);
  float *to_scale = floats(op, "dgamma", dgamma, x.width), *to_shift = floats(op, "dbeta", dbeta, x.width);
  BOOST_EXT_CPU(layer_norm_gradient)(context, dy, x, of_rows, factors, scale, dx, to_scale, to_shift);
}

}  // namespace boost_ext
