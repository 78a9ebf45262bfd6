#include "ops/layer_norm.h"

namespace boost_ext {

void layer_norm(const Context& context, const View& x, const View& gamma, const View& beta, double epsilon,
                const View& y) {
  const char* op = kLayerNorm.op;
  check(kLayerNorm, x, gamma, beta, epsilon, y);
  require_matrix(op, "x", x);
  require_size(op, "y", y, x.size);
  const float *scale = floats(op, "gamma", gamma, x.width), *shift = floats(op, "beta", beta, x.width);
  BOOST_EXT_CPU(layer_norm)(context, x, scale, shift, epsilon, y);
}

void layer_norm_gradient(const Context& context, const View& dy, const View& x, const View& gamma, double epsilon,
                         const View& dx, const View& dgamma, const View& dbeta) {
  const char* op = kLayerNormGradient.op;
  check(kLayerNormGradient, dy, x, gamma, epsilon, dx, dgamma, dbeta);
  require_matrix(op, "x", x);
  require_size(op, "dy", dy, x.size);
  require_size(op, "dx", dx, x.size);
  const float* scale = floats(op, "gamma", gamma, x.width);
  float *to_scale = floats(op, "dgamma", dgamma, x.width), *to_shift = floats(op, "dbeta", dbeta, x.width);
  BOOST_EXT_CPU(layer_norm_gradient)(context, dy, x, scale, epsilon, dx, to_scale, to_shift);
}

}  // namespace boost_ext
