#include "ops/covariance.h"

namespace boost_ext {
namespace {

const std::vector<std::int64_t> kNone;

}  // namespace

void covariance(const Context& context, const View& x, const std::vector<std::int64_t>& numbers, double factor,
                const View& out) {
  if (numbers.empty()) return covariance(context, x, factor, out);
  require(numbers.size() == 14, kCovariance.op, ": patches must hold 14 numbers, got ", numbers.size());
  const auto* v = numbers.data();
  const Patches patches{v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7], v[8], v[9], v[10], v[11], v[12], v[13]};
  covariance(context, x, patches, factor, out);
}

void covariance(const Context& context, const View& x, const Patches& p, double factor, const View& out) {
  require_float(kCovariance.op, "x", x);
  const Device device = check(kCovariance, x, kNone, factor, out);
  for (std::int64_t extent : {p.c, p.kh, p.kw, p.sh, p.sw, p.dh, p.dw}) {
    require(extent >= 1, kCovariance.op, ": channels, kernel, stride and dilation must be >= 1, got ", extent);
  }
  for (std::int64_t extent : {p.n, p.h, p.w, p.top, p.left, p.oh, p.ow}) {
    require(extent >= 0, kCovariance.op, ": images, padding and output positions must be >= 0, got ", extent);
  }
  require_size(kCovariance.op, "x", x, p.n * p.c * p.h * p.w);
  std::int64_t block = 0;
  if (out.ndim == 3 && out.rows > 0) {
    while ((block + 1) * (block + 1) * out.rows <= out.size) ++block;
  }
  const std::int64_t blocks = block > 0 ? (p.size() + block - 1) / block : -1;
  require(block > 0 && block * block * out.rows == out.size && blocks == out.rows, kCovariance.op,
          ": out must have shape (blocks, b, b) with as many blocks as ", p.size(), " features need, got ", out.ndim,
          " axes, ", out.rows, " rows and ", out.size, " elements");
  if (device == Device::cuda) return BOOST_EXT_CUDA(covariance)(context, x, p, factor, block, out);
  BOOST_EXT_CPU(covariance)(context, x, p, factor, block, out);
}

void covariance(const Context& context, const View& indices, double factor, const View& out) {
  require_dtype(kCovariance.op, "x", indices, DType::i32);
  const Device device = check(kCovariance, indices, kNone, factor, out);
  require(out.ndim == 1, kCovariance.op, ": out must have one axis for indices, got ", out.ndim);
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
