// The calls that boost_ext's thor makes: one flat list of arrays each, numbers included, so that nothing is read on the
// Python side.
#include <cstring>

#include "doors/graph.h"
#include "ops/covariance.h"
#include "ops/damped_inverse.h"
#include "ops/precondition.h"
#include "ops/unscale_and_check.h"

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

}  // namespace

// The covariances of one layer, see layer_covariances in ops/covariance.h.
//   step      int32 (1,): steps made so far
//   layer     int32 (15,): the numbers of a Layer
//   batch     float64 (1,)
//   x, dout, A, G
BOOST_EXT_GRAPH_OP(covariance) {
  const std::int32_t step = *integers(in, "step", 1);
  Layer layer;
  std::memcpy(&layer, integers(in, "layer", sizeof layer / sizeof(std::int32_t)), sizeof layer);
  const double batch = number(in, "batch");
  const View &x = in.take("x"), &dout = in.take("dout"), &A = in.take("A"), &G = in.take("G");
  in.require_end();
  layer_covariances(cpu_context(), step, layer, batch, x, dout, A, G);
}

// The inverses of all layers, see layer_inverses in ops/damped_inverse.h, and what that returns.
//   step, skip bool (1,), layout int32 (2,): frequency, number of layers
//   own_scale float64 (1,), scale float32 (1,), damping
//   A, G      one a layer; A^-1, G^-1
BOOST_EXT_GRAPH_OP(damped_inverse) {
  InverseSettings settings;
  settings.step = *integers(in, "step", 1);
  settings.skip = *some<bool>(in, "skip", DType::b8, 1);
  const auto& [frequency, layers] = *some<std::int32_t[2]>(in, "layout", DType::i32, 2);
  settings.frequency = frequency;
  settings.own_scale = number(in, "own_scale");
  settings.scale = scale(in);
  settings.damping = in.take("damping");
  Views matrices = in.list("A", layers);
  for (const View& v : in.list("G", layers)) matrices.push_back(v);
  const Views inverses = in.list("inverses", 2 * std::int64_t{layers});
  in.require_end();
  in.answer(layer_inverses(cpu_context(), settings, matrices, inverses));
}

// New gradients: out = G^-1 g A^-1 / scale of the layers, g / scale of the others.
//   scale     float32 (1,)
//   A^-1, G^-1 of the layers
//   layout    int32 (n,): for each gradient 0 if it belongs to no layer, 1 if it is that of the next Dense or
//             convolution, 2 that of the next embedding
//   n gradients; n of float32, written
BOOST_EXT_GRAPH_FUNCTION(precondition) {
  const char* op = in.op();
  const double inv_scale = inverse_scale(scale(in));
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
