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

}  // namespace boost_ext
