#include "ops/pca_project.h"

namespace boost_ext {

void require_projection(const char* op, const View& P, std::int64_t n) {
  require_float(op, "P", P);
  require(P.ndim == 2 && P.rows >= 1, op, ": P must be a (k, n) matrix with k >= 1, got ", P.ndim, " axes and ", P.rows,
          " rows");
  const std::int64_t columns = P.size / P.rows;
  require(columns == n, op, ": P must have one column for each of the ", n, " elements of all tensors, got ", columns);
}

void pca_project(const Context& context, const View& P, const Views& grads, const View& out) {
  const char* op = "pca_project";
  const Device device = require_any_device(op, {&grads}, {P, out});
  require_floats(op, {"grads", grads});
  const std::int64_t n = total_size(grads);
  require_projection(op, P, n);
  require_dtype(op, "out", out, DType::f32);
  require_size(op, "out", out, P.rows);
  require_writable(op, "out", out);
  Overlap overlap(op);
  overlap.reads("P", P);
  overlap.reads({"grads", grads});
  overlap.writes("out", out);
  overlap.check();
  auto* sums = static_cast<float*>(out.data);
  if (device == Device::ascend) return BOOST_EXT_ASCEND(pca_project)(context, P, grads, n, out);
  if (device == Device::cuda) return BOOST_EXT_CUDA(pca_project)(context, P, grads, n, sums);
  BOOST_EXT_CPU(pca_project)(context, P, grads, n, sums);
}

}  // namespace boost_ext
