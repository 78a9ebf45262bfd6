#include "ops/pca_project.h"

namespace boost_ext {
namespace {

void require_scale(const char* op, const View& P, const View* scale, std::int64_t n) {
  const std::int64_t blocks = (n + kProjectionBlock - 1) / kProjectionBlock;
  const std::string expected = text(op, ": scale must be a (", P.rows, ", ", blocks,
                                    ") matrix beside an int8 P, one for each row and 256 columns, got ");
  require(scale != nullptr, expected, "None");
  require_dtype(op, "scale", *scale, DType::f32);
  require(scale->ndim == 2, expected, scale->ndim, " axes");
  require(scale->rows == P.rows && scale->size == P.rows * blocks, expected, "(", scale->rows, ", ", scale->width, ")");
}

}  // namespace

const float* require_projection(const char* op, const View& P, const View* scale, std::int64_t n, Device device) {
  const bool codes = P.dtype == DType::i8;
  if (!codes && P.dtype != DType::f32 && P.dtype != DType::f16 && P.dtype != DType::bf16) {
    throw TypeError(text(op, ": P must be float32, float16, bfloat16 or int8, got ", dtype_name(P)));
  }
  require(P.ndim == 2 && P.rows >= 1, op, ": P must be a (k, n) matrix with k >= 1, got ", P.ndim, " axes and ", P.rows,
          " rows");
  const std::int64_t columns = P.size / P.rows;
  require(columns == n, op, ": P must have one column for each of the ", n, " elements of all tensors, got ", columns);
  require(codes || scale == nullptr, op, ": scale must be None beside a ", dtype_name(P), " P, got an array");
  if (!codes) return nullptr;
  require_scale(op, P, scale, n);
  if (device == Device::ascend) {
    throw std::runtime_error(text(op, ": got Ascend arrays, but an int8 P has no Ascend kernel"));
  }
  return static_cast<const float*>(scale->data);
}

void pca_project(const Context& context, const View& P, const Views& grads, const View& out, const View* scale) {
  const char* op = "pca_project";
  const Device device = require_any_device(op, {&grads}, {P, out, scale != nullptr ? *scale : out});
  require_floats(op, {"grads", grads});
  const std::int64_t n = total_size(grads);
  const float* scales = require_projection(op, P, scale, n, device);
  require_dtype(op, "out", out, DType::f32);
  require_size(op, "out", out, P.rows);
  require_writable(op, "out", out);
  Overlap overlap(op);
  overlap.reads("P", P);
  if (scale != nullptr) overlap.reads("scale", *scale);
  overlap.reads({"grads", grads});
  overlap.writes("out", out);
  overlap.check();
  auto* sums = static_cast<float*>(out.data);
  if (device == Device::ascend) return BOOST_EXT_ASCEND(pca_project)(context, P, grads, n, out);
  if (device == Device::cuda) return BOOST_EXT_CUDA(pca_project)(context, P, scales, grads, n, sums);
  BOOST_EXT_CPU(pca_project)(context, P, scales, grads, n, sums);
}

}  // namespace boost_ext
