#include "ops/pca_back_project.h"

namespace boost_ext {

void pca_back_project(const Context& context, const View& P, const Views& vectors, const std::vector<Views>& out,
                      const View& scale) {
  const char* op = kPcaBackProject.op;
  const Device device = check(kPcaBackProject, P, vectors, out, scale);
  const std::int64_t n = total_size(out[0]);
  const float* scales = require_projection(op, P, scale, n, device);
  for (std::size_t j = 0; j < vectors.size(); ++j) {
    require_size(op, {"vectors", static_cast<std::int64_t>(j)}, vectors[j], P.rows);
  }
  Views flat;
  for (const Views& list : out) flat.insert(flat.end(), list.begin(), list.end());
  const auto tensors = static_cast<std::int64_t>(out[0].size());
  if (device == Device::ascend) return BOOST_EXT_ASCEND(pca_back_project)(context, P, vectors, flat, tensors, n);
  if (device == Device::cuda) return BOOST_EXT_CUDA(pca_back_project)(context, P, scales, vectors, flat, tensors, n);
  BOOST_EXT_CPU(pca_back_project)(context, P, scales, vectors, flat, tensors, n);
}

void pca_back_project_two(const Context& context, const View& P, const View& v, const View& w, const Views& out_v,
                          const Views& out_w, const View& scale) {
  pca_back_project(context, P, {v, w}, {out_v, out_w}, scale);
}

void unflatten(const Context& context, const View& factor, const View& vector, const Views&, const Views& out) {
  View row = vector;
  row.rows = 1;
  row.ndim = 2;
  pca_back_project(context, row, {factor}, {out});
}

void subspace_point(const Context& context, const View& P, const View& coordinates, const View& origin,
                    const Views& weights) {
  const char* op = kSubspacePoint.op;
  require_dtype(op, "origin", origin, DType::f32);
  require(origin.ndim == 2 && origin.rows == 2, op, ": origin must have two rows, got ", origin.rows);
  View moved = origin, ones;
  moved.set_shape(1, [&](int) { return origin.size / 2; });
  moved.data = static_cast<float*>(origin.data) + moved.size;
  float one[2] = {1.0F, 1.0F};
  ones.data = one;
  ones.set_shape(1, [](int) { return 2; });
  pca_back_project(context, P, {coordinates}, {{moved}});
  pca_back_project(context, origin, {ones}, {weights});
}

}  // namespace boost_ext
