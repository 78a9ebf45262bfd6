#include "ops/gelu.h"

namespace boost_ext {

void gelu(const Context& context, const View& x, bool tanh, const View& y) {
  check(kGelu, x, tanh, y);
  require_size(kGelu.op, "y", y, x.size);
  BOOST_EXT_CPU(gelu)(context, x, tanh, y);
}

void gelu_gradient(const Context& context, const View& dy, const View& x, bool tanh, const View& dx) {
  check(kGeluGradient, dy, x, tanh, dx);
  require_size(kGeluGradient.op, "x", x, dy.size);
  require_size(kGeluGradient.op, "dx", dx, dy.size);
  BOOST_EXT_CPU(gelu_gradient)(context, dy, x, tanh, dx);
}

}  // namespace boost_ext
