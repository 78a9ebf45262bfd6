#include "ops/softmax.h"

namespace boost_ext {

void softmax(const Context& context, const View& x, const View& y) {
  check(kSoftmax, x, y);
  require_matrix(kSoftmax.op, "x", x);
  BOOST_EXT_CPU(softmax)
  (context, x.rows, x.width, static_cast<const float*>(x.data), floats(kSoftmax.op, "y", y, x.size));
}

void softmax_gradient(const Context& context, const View& dy, const View& y, const View& dx) {
  const char* op = kSoftmaxGradient.op;
  check(kSoftmaxGradient, dy, y, dx);
  require_matrix(op, "dy", dy);
  BOOST_EXT_CPU(softmax_gradient)
  (context, dy.rows, dy.width, static_cast<const float*>(dy.data), floats(op, "y", y, dy.size),
   floats(op, "dx", dx, dy.size));
}

}  // namespace boost_ext
