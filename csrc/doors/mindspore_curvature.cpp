// The calls that boost_ext's thor makes: one flat list of arrays each, numbers included, so that nothing is read on the
// Python side.
#include <cmath>
#include <cstring>

#include "doors/graph.h"
#include "ops/covariance.h"
#include "ops/damped_inverse.h"
#include "ops/precondition.h"

namespace boost_ext {
namespace {

// Of an array of at least so many elements.
template <class T> const T* some(Reader& in, const char* arg, DType dtype, std::int64_t size) {
  return static_cast<const T*>(in.at_least(arg, dtype, size).data);
}
const std::int32_t* integers(Reader& in, const char* arg, std::int64_t size) {
  return some<std::int32_t>(in, arg, DType::i32, size);
}
double number(Reader& in, const char* arg) { return *some<double>(in, arg, DType::f64, 1); }
double scale(Reader& in) { return *some<float>(in, "scale", DType::f32, 1); }

bool is_due(std::int32_t step, std::int32_t frequency) { return frequency > 0 && step % frequency == 0; }

Patches matrix(const View& v) {
  Patches p{};
  p.n = v.rows, p.c = v.rows > 0 ? v.size / v.rows : 1;
  p.h = p.w = p.oh = p.ow = 1;
  p.kh = p.kw = p.sh = p.sw = p.dh = p.dw = 1;
  return p;
}

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

// The numbers of `layer`, in their order.
struct Layer {
  std::int32_t kind, frequency, outputs, channels, kh, kw, sh, sw, dh, dw, same, above, below, left, right;
};
enum LayerKind : std::int32_t { kDense, kConvolution, kEmbedding };

void convolution(const Layer& layer, double batch, const View& x, const View& dout, const View& A, const View& G) {
  const char* op = "covariance";
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
  Patches p{};
  p.n = n, p.c = c, p.h = x.rows / (n * c), p.w = x.size / x.rows;
  p.kh = layer.kh, p.kw = layer.kw, p.sh = layer.sh, p.sw = layer.sw, p.dh = layer.dh, p.dw = layer.dw;
  const bool same = layer.same != 0;
  const ImageAxis down(p.h, p.kh, p.sh, p.dh, same, layer.above, layer.below);
  const ImageAxis across(p.w, p.kw, p.sw, p.dw, same, layer.left, layer.right);
  p.oh = down.out, p.ow = across.out, p.top = down.before, p.left = across.before;
  // Compared before they are multiplied: a padding may be anything.
  require(p.oh > 0 && p.ow > 0 && p.ow <= dout.size / p.oh && n * o * p.oh * p.ow == dout.size, op, ": dout must have ",
          n, " * ", o, " * ", p.oh, " * ", p.ow, " elements, got ", dout.size);
  const std::int64_t positions = p.oh * p.ow;
  Patches outputs{};
  outputs.n = n, outputs.c = o, outputs.h = outputs.oh = p.oh, outputs.w = outputs.ow = p.ow;
  outputs.kh = outputs.kw = outputs.sh = outputs.sw = outputs.dh = outputs.dw = 1;
  const double share = std::sqrt(static_cast<double>(positions)) / static_cast<double>(n * positions);
  covariance(cpu_context(), x, p, share, A);
  covariance(cpu_context(), dout, outputs, batch * batch * share, G);
}

}  // namespace

// The covariances of one layer, in the steps whose number is a multiple of the frequency; otherwise nothing happens.
//   step      int32 (1,): steps made so far
//   layer     int32 (15,): kind (0 Dense, 1 convolution, 2 embedding), frequency, output channels; of a convolution
//             input channels, kernel, stride, dilation (two each), whether it pads as "same", padding above, below,
//             left, right
//   batch     float64 (1,): gradients times it are those of single samples
//   x         the layer's input: (rows, d); (n * c * h, w) of a convolution; int32 (rows,) of an embedding
//   dout      the gradient of its output: (rows, o), or (n, o, oh, ow)
//   A, G      float64, written, see ops/covariance.h
// With T output positions of a convolution (T = 1 for the others): A = sqrt(T) * mean of a a^T and G = sqrt(T) *
// batch^2 * mean of dout dout^T over samples and positions; A of an embedding: how often each row was used, by batch.
BOOST_EXT_GRAPH_OP(covariance) {
  const std::int32_t step = *integers(in, "step", 1);
  Layer layer;
  std::memcpy(&layer, integers(in, "layer", sizeof layer / sizeof(std::int32_t)), sizeof layer);
  const double batch = number(in, "batch");
  const View &x = in.take("x"), &dout = in.take("dout"), &A = in.take("A"), &G = in.take("G");
  in.require_end();
  if (!is_due(step, layer.frequency)) return;
  if (layer.kind == kConvolution) return convolution(layer, batch, x, dout, A, G);
  require(x.rows == dout.rows, "covariance: x must have as many rows as dout, ", dout.rows, ", got ", x.rows);
  const double share = dout.rows > 0 ? 1.0 / static_cast<double>(dout.rows) : 0;
  if (layer.kind == kEmbedding)
    covariance(cpu_context(), x, 1 / batch, A);
  else
    covariance(cpu_context(), x, matrix(x), share, A);
  covariance(cpu_context(), dout, matrix(dout), batch * batch * share, G);
}

// The inverses of all layers, in the same steps, unless skipped; the answer is false if some matrix could not be
// inverted.
//   step, skip bool (1,), layout int32 (2,): frequency, number of layers
//   own_scale float64 (1,), scale float32 (1,): dout was this many times too large
//   damping   float32 (k,): one number, or one for each step, of which the last is good for all that follow
//   A, G      float64, one a layer; A^-1, G^-1 float32, written: (A + sqrt(damping) I)^-1
BOOST_EXT_GRAPH_OP(damped_inverse) {
  const std::int32_t step = *integers(in, "step", 1);
  require(step >= 0, "damped_inverse: step must be >= 0, got ", step);
  const bool skip = *some<bool>(in, "skip", DType::b8, 1);
  const auto& [frequency, layers] = *some<std::int32_t[2]>(in, "layout", DType::i32, 2);
  const double own_scale = number(in, "own_scale"), all_scales = own_scale * scale(in);
  const View& dampings = in.take("damping");
  require_dtype("damped_inverse", "damping", dampings, DType::f32);
  require(dampings.size >= 1, "damped_inverse: damping must hold at least one number, got none");
  Views matrices = in.list("A", layers);
  for (const View& v : in.list("G", layers)) matrices.push_back(v);
  const Views inverses = in.list("inverses", 2 * std::int64_t{layers});
  in.require_end();
  if (skip || !is_due(step, frequency)) return;
  const std::int64_t at = step < dampings.size ? step : dampings.size - 1;
  const double damping = std::sqrt(static_cast<double>(static_cast<const float*>(dampings.data)[at]));
  std::vector<double> factors(static_cast<std::size_t>(layers), 1.0);
  factors.resize(matrices.size(), 1 / (all_scales * all_scales));
  float inverted = 0;
  damped_inverse(cpu_context(), matrices, factors, std::vector<double>(matrices.size(), damping), inverses,
                 view_of(inverted));
  in.answer(inverted != 0);
}

// New gradients: out = G^-1 g A^-1 / scale of the layers, g / scale of the others.
//   scale     float32 (1,)
//   A^-1, G^-1 of the layers
//   layout    int32 (n,): for each gradient 0 if it belongs to no layer, 1 if it is that of the next Dense or
//             convolution, 2 that of the next embedding
//   n gradients; n of float32, written
BOOST_EXT_GRAPH_FUNCTION(precondition) {
  const char* op = in.op();
  const double inv_scale = 1 / scale(in);
  const std::int64_t factors = in.until(DType::i32);  // the layout
  const Views A = in.list("A", factors / 2), G = in.list("G", factors - factors / 2);
  const View& kinds = in.take("layout", DType::i32, -1);
  const std::int64_t n = kinds.size;
  const Views grads = in.list("grads", n), out = in.list("out", n);
  in.require_end();
  const auto* layout = static_cast<const std::int32_t*>(kinds.data);
  std::int64_t curved = 0;
  for (std::int64_t i = 0; i < n; ++i) curved += layout[i] != 0;
  require(factors == 2 * curved, op, ": must get two factors for each of ", curved, " layers, got ", factors);
  View none;
  none.size = 0;
  Views left, right;
  std::size_t next = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int32_t kind = layout[i];
    left.push_back(kind == 0 ? none : kind == 1 ? G[next] : A[next]);
    right.push_back(kind == 0 ? none : kind == 1 ? A[next] : G[next]);
    next += kind != 0;
  }
  precondition(cpu_context(), grads, left, right, inv_scale, out);
}

}  // namespace boost_ext
