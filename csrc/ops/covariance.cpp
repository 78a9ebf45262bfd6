#include "ops/covariance.h"

#include <cmath>
#include <cstring>

namespace boost_ext {
namespace {

const std::vector<std::int64_t> kNone;

// A matrix, as images of one element in each channel.
Patches matrix(const View& v) { return {v.rows, v.rows > 0 ? v.size / v.rows : 1, 1, 1}; }

// Output positions along one axis, and the padding before the first.
struct ImageAxis {
  std::int64_t out, before;
  ImageAxis(std::int64_t size, std::int64_t kernel, std::int64_t stride, std::int64_t dilation, bool same,
            std::int64_t before_, std::int64_t after)
      : before(before_) {
    const std::int64_t reach = (kernel - 1) * dilation + 1;
    out = same ? (size + stride - 1) / stride : (size + before + after - reach) / stride + 1;
    if (!same) return;
    const std::int64_t padding = (out - 1) * stride + reach - size;
    before = padding > 0 ? padding / 2 : 0;
  }
};

enum LayerKind : std::int32_t { kDense, kConvolution, kEmbedding };

void convolution(const Context& context, const Layer& layer, double batch, const View& x, const View& dout,
                 const View& A, const View& G) {
  const char* op = kCovariance.op;
  const std::int64_t n = dout.rows, o = layer.outputs, c = layer.channels;
  int i = 2;
  for (std::int32_t extent :
       {layer.outputs, layer.channels, layer.kh, layer.kw, layer.sh, layer.sw, layer.dh, layer.dw}) {
    require(extent >= 1, op, ": layer[", i, "] must be >= 1, got ", extent);
    ++i;
  }
  for (std::int32_t extent : {layer.same, layer.above, layer.below, layer.left, layer.right}) {
    require(extent >= 0, op, ": layer[", i, "] must be >= 0, got ", extent);
    ++i;
  }
  require(x.size > 0 && dout.size > 0 && x.rows % (n * c) == 0, op, ": x must be of as many images as dout, got ",
          x.rows, " rows and ", n, " images");
  Patches p{n, c, x.rows / (n * c), x.size / x.rows, layer.kh, layer.kw, layer.sh, layer.sw, layer.dh, layer.dw};
  const bool same = layer.same != 0;
  const ImageAxis down(p.h, p.kh, p.sh, p.dh, same, layer.above, layer.below);
  const ImageAxis across(p.w, p.kw, p.sw, p.dw, same, layer.left, layer.right);
  p.oh = down.out, p.ow = across.out, p.top = down.before, p.left = across.before;
  // Compared before they are multiplied: a padding may be anything.
  require(p.oh > 0 && p.ow > 0 && p.ow <= dout.size / p.oh && n * o * p.oh * p.ow == dout.size, op, ": dout must have ",
          n, " * ", o, " * ", p.oh, " * ", p.ow, " elements, got ", dout.size);
  const std::int64_t positions = p.oh * p.ow;
  Patches outputs{n, o, p.oh, p.ow};
  outputs.oh = p.oh, outputs.ow = p.ow;
  const double share = std::sqrt(static_cast<double>(positions)) / static_cast<double>(n * positions);
  covariance(context, x, p, share, A);
  covariance(context, dout, outputs, batch * batch * share, G);
}

}  // namespace

void covariance(const Context& context, const View& x, const std::vector<std::int64_t>& numbers, double factor,
                const View& out) {
  if (numbers.empty()) return covariance(context, x, factor, out);
  covariance(context, x, patches_of(kCovariance.op, numbers), factor, out);
}

void covariance(const Context& context, const View& x, const Patches& p, double factor, const View& out) {
  require_float(kCovariance.op, "x", x);
  const Device device = check(kCovariance, x, kNone, factor, out);
  require_extents(kCovariance.op, p);
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

bool is_due(std::int64_t step, std::int64_t frequency) { return frequency > 0 && step % frequency == 0; }

void layer_covariances(const Context& context, std::int64_t step, const std::vector<std::int32_t>& numbers,
                       double batch, const View& x, const View& dout, const View& A, const View& G) {
  Layer layer;
  constexpr std::size_t count = sizeof layer / sizeof(std::int32_t);
  require(numbers.size() == count, kCovariance.op, ": layer must have ", count, " elements, got ", numbers.size());
  std::memcpy(&layer, numbers.data(), sizeof layer);
  if (!is_due(step, layer.frequency)) return;
  if (layer.kind == kConvolution) return convolution(context, layer, batch, x, dout, A, G);
  require(x.rows == dout.rows, kCovariance.op, ": x must have as many rows as dout, ", dout.rows, ", got ", x.rows);
  const double share = dout.rows > 0 ? 1.0 / static_cast<double>(dout.rows) : 0;
  if (layer.kind == kEmbedding)
    covariance(context, x, 1 / batch, A);
  else
    covariance(context, x, matrix(x), share, A);
  covariance(context, dout, matrix(dout), batch * batch * share, G);
}

}  // namespace boost_ext
