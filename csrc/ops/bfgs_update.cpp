#include "ops/bfgs_update.h"

#include <cmath>

namespace boost_ext {
namespace {

Overlap require_update(const char* op, const View& B, const View& s, const View& y, double eps) {
  if (B.dtype != DType::f32 && B.dtype != DType::f64) {
    throw TypeError(text(op, ": B must be float32 or float64, got ", dtype_name(B)));
  }
  require_square(op, "B", B);
  require_dtype(op, "s", s, B.dtype);
  require_dtype(op, "y", y, B.dtype);
  require_size(op, "s", s, B.rows);
  require_size(op, "y", y, B.rows);
  require_writable(op, "B", B);
  require(std::isfinite(eps) && eps >= 0, op, ": eps must be finite and >= 0, got ", eps);
  Overlap overlap(op);
  overlap.writes("B", B);
  overlap.reads("s", s);
  overlap.reads("y", y);
  return overlap;
}

}  // namespace

void require_square(const char* op, const char* arg, const View& B) {
  require(B.ndim == 2 && B.rows >= 1 && B.size == B.rows * B.rows, op, ": ", arg,
          " must be a square (k, k) matrix with k >= 1, got ", B.ndim, " axes, ", B.rows, " rows and ", B.size,
          " elements");
}

bool bfgs_update(const Context&, const View& B, const View& s, const View& y, double eps) {
  const char* op = "bfgs_update";
  require_cpu(op, {}, {B, s, y});
  require_update(op, B, s, y, eps).check();
  return BOOST_EXT_CPU(bfgs_update)(B, s, y, eps);
}

void bfgs_update(const Context& context, const View& B, const View& s, const View& y, double eps, const View& out) {
  const char* op = "bfgs_update";
  const Device device = require_any_device(op, {}, {B, s, y, out});
  Overlap overlap = require_update(op, B, s, y, eps);
  require_result(op, "out", out, DType::f32);
  overlap.writes("out", out);
  overlap.check();
  if (device == Device::ascend) return BOOST_EXT_ASCEND(bfgs_update)(context, B, s, y, eps, out);
  auto* updated = static_cast<float*>(out.data);
  if (device == Device::cuda) return BOOST_EXT_CUDA(bfgs_update)(context, B, s, y, eps, updated);
  *updated = BOOST_EXT_CPU(bfgs_update)(B, s, y, eps) ? 1.0F : 0.0F;
}

}  // namespace boost_ext
