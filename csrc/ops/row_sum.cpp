#include "ops/row_sum.h"

namespace boost_ext {

void row_sum(const Context& context, const View& x, const View& out) {
  check(kRowSum, x, out);
  require(x.ndim == 2, kRowSum.op, ": x must have two axes, got ", x.ndim);
  require_size(kRowSum.op, "out", out, x.width);
  BOOST_EXT_CPU(row_sum)(context, x, static_cast<float*>(out.data));
}

}  // namespace boost_ext
