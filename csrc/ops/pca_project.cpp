#include "ops/pca_project.h"

namespace boost_ext {
namespace {

void require_scale(const char* op, const View& P, const View& scale, std::int64_t n) {
  const std::int64_t blocks = (n + kProjectionBlock - 1) / kProjectionBlock;
  const std::string expected = text(op, ": scale must be a (", P.rows, ", ", blocks,
                                    ") matrix beside an int8 P, one for each row and 256 columns, got ");
  require(!is_none(scale), expected, "None");
  require_dtype(op, "scale", scale, DType::f32);
  require(scale.ndim == 2, expected, scale.ndim, " axes");
  require(scale.rows == P.rows && scale.size == P.rows * blocks, expected, "(", scale.rows, ", ", scale.width, ")");
}

}  // namespace

const float* require_projection(const char* op, const View& P, const View& scale, std::int64_t n, Device device) {
  const bool codes = P.dtype == DType::i8;
  require(P.ndim == 2 && P.rows >= 1, op, ": P must be a (k, n) matrix with k >= 1, got ", P.ndim, " axes and ", P.rows,
          " rows");
  const std::int64_t columns = P.size / P.rows;
  require(columns == n, op, ": P must have one column for each of the ", n, " elements of all tensors, got ", columns);
  require(codes || is_none(scale), op, ": scale must be None beside a ", dtype_name(P), " P, got an array");
  if (!codes) return nullptr;
  require_scale(op, P, scale, n);
  if (device == Device::ascend) {
    throw std::runtime_error(text(op, ": got Ascend arrays, but an int8 P has no Ascend kernel"));
  }
  return static_cast<const float*>(scale.data);
}

void pca_project(const Context& context, const View& P, const Views& grads, const View& out, const View& scale) {
  const Device device = check(kPcaProject, P, grads, out, scale);
  const std::int64_t n = total_size(grads);
  const float* scales = require_projection(kPcaProject.op, P, scale, n, device);
  require_size(kPcaProject.op, "out", out, P.rows);
  auto* sums = static_cast<float*>(out.data);
  if (device == Device::ascend) return BOOST_EXT_ASCEND(pca_project)(context, P, grads, n, out);
  if (device == Device::cuda) return BOOST_EXT_CUDA(pca_project)(context, P, scales, grads, n, sums);
  BOOST_EXT_CPU(pca_project)(context, P, scales, grads, n, sums);
}

}  // namespace boost_ext
