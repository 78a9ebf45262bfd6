#include "ops/covariance.h"

namespace boost_ext {
namespace {

constexpr const char* kOp = "covariance";

Device require_out(const View& x, const View& out) {
  const Device device = require_device(kOp, {}, {x, out});
  require_dtype(kOp, "out", out, DType::f64);
  require_writable(kOp, "out", out);
  Overlap overlap(kOp);
  overlap.reads("x", x);
  overlap.writes("out", out);
  overlap.check();
  return device;
}

}  // namespace

void covariance(const Context& context, const View& x, const Patches& p, double factor, const View& out) {
  require_float(kOp, "x", x);
  const Device device = require_out(x, out);
  require_finite(kOp, "factor", factor);
  for (std::int64_t extent : {p.c, p.kh, p.kw, p.sh, p.sw, p.dh, p.dw}) {
    require(extent >= 1, kOp, ": channels, kernel, stride and dilation must be >= 1, got ", extent);
  }
  for (std::int64_t extent : {p.n, p.h, p.w, p.top, p.left, p.oh, p.ow}) {
    require(extent >= 0, kOp, ": images, padding and output positions must be >= 0, got ", extent);
  }
  require_size(kOp, "x", x, p.n * p.c * p.h * p.w);
  std::int64_t block = 0;
  if (out.ndim == 3 && out.rows > 0) {
    while ((block + 1) * (block + 1) * out.rows <= out.size) ++block;
  }
  const std::int64_t blocks = block > 0 ? (p.size() + block - 1) / block : -1;
  require(block > 0 && block * block * out.rows == out.size && blocks == out.rows, kOp,
          ": out must have shape (blocks, b, b) with as many blocks as ", p.size(), " features need, got ", out.ndim,
          " axes, ", out.rows, " rows and ", out.size, " elements");
  if (device == Device::cuda) return BOOST_EXT_CUDA(covariance)(context, x, p, factor, block, out);
  BOOST_EXT_CPU(covariance)(context, x, p, factor, block, out);
}

void covariance(const Context& context, const View& indices, double factor, const View& out) {
  require_dtype(kOp, "x", indices, DType::i32);
  const Device device = require_out(indices, out);
  require_finite(kOp, "factor", factor);
  require(out.ndim == 1, kOp, ": out must have one axis for indices, got ", out.ndim);
  if (device == Device::cuda) return BOOST_EXT_CUDA(count_indices)(context, indices, factor, out);
  const auto* index = static_cast<const std::int32_t*>(indices.data);
  auto* counts = static_cast<double*>(out.data);
  for (std::int64_t i = 0; i < out.size; ++i) counts[i] = 0;
  for (std::int64_t r = 0; r < indices.size; ++r) {
    if (index[r] >= 0 && index[r] < out.size) counts[index[r]] += 1;
  }
  for (std::int64_t i = 0; i < out.size; ++i) counts[i] *= factor;
}

}  // namespace boost_ext
