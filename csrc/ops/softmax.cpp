#include "ops/softmax.h"

namespace boost_ext {
namespace {

void require_rows(const char* op, const char* name, const View& v) {
  require(v.ndim == 2 && v.width > 0, op, ": ", name, " must have two axes, the last of one element or more, got ",
          v.ndim, " axes and ", v.size, " elements");
}

}  // namespace

void softmax(const Context& context, const View& x, const View& y) {
  check(kSoftmax, x, y);
  require_rows(kSoftmax.op, "x", x);
  BOOST_EXT_CPU(softmax)
  (context, x.rows, x.width, static_cast<const float*>(x.data), floats(kSoftmax.op, "y", y, x.size));
}

void softmax_gradient(const Context& context, const View& dy, const View& y, const View& dx) {
  const char* op = kSoftmaxGradient.op;
  check(kSoftmaxGradient, dy, y, dx);
  require_rows(op, "dy", dy);
  BOOST_EXT_CPU(softmax_gradient)
  (context, dy.rows, dy.width, static_cast<const float*>(dy.data), floats(op, "y", y, dy.size),
   floats(op, "dx", dx, dy.size));
}

}  // namespace boost_ext
