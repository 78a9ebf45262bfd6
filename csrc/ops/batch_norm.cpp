#include "ops/batch_norm.h"

namespace boost_ext {
namespace {

void require_planes(const char* op, const View& x) {
  require(x.ndim == 3 && x.size > 0, op, ": x must have three axes, of one element or more, got ", x.ndim, " axes and ",
          x.size, " elements");
}

// What has so many elements, or std::invalid_argument.
float* floats(const char* op, const char* name, const View& v, std::int64_t size) {
  require_size(op, name, v, size);
  return static_cast<float*>(v.data);
}

}  // namespace

void batch_norm(const Context& context, const View& x, const View& gamma, const View& beta, double epsilon,
                double momentum, const View& moving_mean, const View& moving_variance, const View& y, const View& mean,
                const View& rstd) {
  const char* op = kBatchNorm.op;
  check(kBatchNorm, x, gamma, beta, epsilon, momentum, moving_mean, moving_variance, y, mean, rstd);
  require_planes(op, x);
  require(momentum >= 0 && momentum <= 1, op, ": momentum must be in 0..1, got ", momentum);
  const std::int64_t channels = x.height;
  BOOST_EXT_CPU(batch_norm)
  (context, {x.rows, channels, x.width, floats(op, "x", x, x.size), floats(op, "gamma", gamma, channels),
             floats(op, "beta", beta, channels), epsilon, momentum, floats(op, "moving_mean", moving_mean, channels),
             floats(op, "moving_variance", moving_variance, channels), floats(op, "y", y, x.size),
             floats(op, "mean", mean, channels), floats(op, "rstd", rstd, channels)});
}

void batch_norm_gradient(const Context& context, const View& dy, const View& x, const View& gamma, const View& mean,
                         const View& rstd, const View& dx, const View& dgamma, const View& dbeta) {
  const char* op = kBatchNormGradient.op;
  check(kBatchNormGradient, dy, x, gamma, mean, rstd, dx, dgamma, dbeta);
  require_planes(op, x);
  const std::int64_t channels = x.height;
  BOOST_EXT_CPU(batch_norm_gradient)
  (context,
   {x.rows, channels, x.width, floats(op, "dy", dy, x.size), floats(op, "x", x, x.size),
    floats(op, "gamma", gamma, channels), floats(op, "mean", mean, channels), floats(op, "rstd", rstd, channels),
    floats(op, "dx", dx, x.size), floats(op, "dgamma", dgamma, channels), floats(op, "dbeta", dbeta, channels)});
}

}  // namespace boost_ext
