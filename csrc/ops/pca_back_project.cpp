#include "ops/pca_back_project.h"

namespace boost_ext {

void pca_back_project(const Context& context, const View& P, const Views& vectors, const std::vector<Views>& out,
                      const View* scale) {
  const char* op = "pca_back_project";
  require(!vectors.empty(), op, ": vectors must hold at least one array, got an empty list");
  require(out.size() == vectors.size(), op, ": out must hold one list for each of the ", vectors.size(),
          " vectors, got ", out.size());
  Overlap overlap(op);
  overlap.reads("P", P);
  if (scale != nullptr) overlap.reads("scale", *scale);
  overlap.reads({"vectors", vectors});
  std::vector<std::string> labels(out.size());
  Views flat;
  Device device = Device::cpu;
  for (std::size_t j = 0; j < out.size(); ++j) {
    labels[j] = text("out[", j, "]");
    const List list{labels[j].c_str(), out[j]};
    device = require_any_device(op, {&out[j], &vectors}, {P, scale != nullptr ? *scale : P});
    require_floats(op, list);
    require_writables(op, list);
    require_same_sizes(op, list, {"out[0]", out[0]});
    overlap.writes(list);
    flat.insert(flat.end(), out[j].begin(), out[j].end());
  }
  const std::int64_t n = total_size(out[0]);
  const float* scales = require_projection(op, P, scale, n, device);
  for (std::size_t j = 0; j < vectors.size(); ++j) {
    const Name name("vectors", static_cast<std::int64_t>(j));
    require_dtype(op, name, vectors[j], DType::f32);
    require_size(op, name, vectors[j], P.rows);
  }
  overlap.check();
  const auto tensors = static_cast<std::int64_t>(out[0].size());
  if (device == Device::ascend) return BOOST_EXT_ASCEND(pca_back_project)(context, P, vectors, flat, tensors, n);
  if (device == Device::cuda) return BOOST_EXT_CUDA(pca_back_project)(context, P, scales, vectors, flat, tensors, n);
  BOOST_EXT_CPU(pca_back_project)(context, P, scales, vectors, flat, tensors, n);
}

}  // namespace boost_ext
