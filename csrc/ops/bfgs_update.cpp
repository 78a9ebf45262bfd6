#include "ops/bfgs_update.h"

namespace boost_ext {

void require_square(const char* op, const char* arg, const View& B) {
  require(B.ndim == 2 && B.rows >= 1 && B.size == B.rows * B.rows, op, ": ", arg,
          " must be a square (k, k) matrix with k >= 1, got ", B.ndim, " axes, ", B.rows, " rows and ", B.size,
          " elements");
}

void bfgs_update(const Context& context, const View& B, const View& s, const View& y, double eps, const View& out) {
  const Device device = check(kBfgsUpdate, B, s, y, eps, out);
  require_square(kBfgsUpdate.op, "B", B);
  require_size(kBfgsUpdate.op, "s", s, B.rows);
  require_size(kBfgsUpdate.op, "y", y, B.rows);
  if (device == Device::ascend) return BOOST_EXT_ASCEND(bfgs_update)(context, B, s, y, eps, out);
  auto* updated = static_cast<float*>(out.data);
  if (device == Device::cuda) return BOOST_EXT_CUDA(bfgs_update)(context, B, s, y, eps, updated);
  *updated = BOOST_EXT_CPU(bfgs_update)(B, s, y, eps) ? 1.0F : 0.0F;
}

}  // namespace boost_ext
