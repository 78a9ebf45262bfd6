#include "doors/packed_curvature.h"

#include <cmath>

#include "doors/packed_reader.h"
#include "ops/covariance.h"
#include "ops/damped_inverse.h"
#include "ops/precondition.h"

namespace boost_ext {
namespace {

class CurvatureReader : public Reader {
 public:
  using Reader::Reader;
  // At least so many elements.
  template <class T> const T* some(const char* arg, DType dtype, std::int64_t size) {
    return static_cast<const T*>(at_least(arg, dtype, size).data);
  }
  const std::int32_t* integers(const char* arg, std::int64_t size) { return some<std::int32_t>(arg, DType::i32, size); }
  double number(const char* arg) { return *some<double>(arg, DType::f64, 1); }
  double scale() { return *some<float>("scale", DType::f32, 1); }
};

bool is_due(std::int32_t step, std::int32_t frequency) { return frequency > 0 && step % frequency == 0; }

Patches matrix(const View& v) {
  Patches p{};
  p.n = v.rows, p.c = v.rows > 0 ? v.size / v.rows : 1;
  p.h = p.w = p.oh = p.ow = 1;
  p.kh = p.kw = p.sh = p.sw = p.dh = p.dw = 1;
  return p;
}

// Output positions along one axis, and the padding before the first.
struct Axis {
  std::int64_t out, before;
  Axis(std::int64_t size, std::int64_t kernel, std::int64_t stride, std::int64_t dilation, bool same,
       std::int64_t before_, std::int64_t after)
      : before(before_) {
    const std::int64_t reach = (kernel - 1) * dilation + 1;
    out = same ? (size + stride - 1) / stride : (size + before + after - reach) / stride + 1;
    if (!same) return;
    const std::int64_t padding = (out - 1) * stride + reach - size;
    before = padding > 0 ? padding / 2 : 0;
  }
};

void convolution(const std::int32_t* layer, double batch, const View& x, const View& dout, const View& A,
                 const View& G) {
  const char* op = "covariance";
  const std::int64_t n = dout.rows, o = layer[2], c = layer[3];
  for (int i = 2; i < 15; ++i) {
    const int least = i < 10 ? 1 : 0;
    require(layer[i] >= least, op, ": layer[", i, "] must be >= ", least, ", got ", layer[i]);
  }
  require(x.size > 0 && dout.size > 0 && x.rows % (n * c) == 0, op, ": x must be of as many images as dout, got ",
          x.rows, " rows and ", n, " images");
  Patches p{};
  p.n = n, p.c = c, p.h = x.rows / (n * c), p.w = x.size / x.rows;
  p.kh = layer[4], p.kw = layer[5], p.sh = layer[6], p.sw = layer[7], p.dh = layer[8], p.dw = layer[9];
  const bool same = layer[10] != 0;
  const Axis down(p.h, p.kh, p.sh, p.dh, same, layer[11], layer[12]);
  const Axis across(p.w, p.kw, p.sw, p.dw, same, layer[13], layer[14]);
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

void packed_covariance(const Views& arrays) {
  require_cpu("covariance", {&arrays});
  CurvatureReader in("covariance", arrays);
  const std::int32_t step = *in.integers("step", 1);
  const std::int32_t* layer = in.integers("layer", 15);
  const double batch = in.number("batch");
  const View &x = in.take("x"), &dout = in.take("dout"), &A = in.take("A"), &G = in.take("G");
  in.require_end();
  if (!is_due(step, layer[1])) return;
  if (layer[0] == 1) return convolution(layer, batch, x, dout, A, G);
  require(x.rows == dout.rows, "covariance: x must have as many rows as dout, ", dout.rows, ", got ", x.rows);
  const double share = dout.rows > 0 ? 1.0 / static_cast<double>(dout.rows) : 0;
  if (layer[0] == 2)
    covariance(cpu_context(), x, 1 / batch, A);
  else
    covariance(cpu_context(), x, matrix(x), share, A);
  covariance(cpu_context(), dout, matrix(dout), batch * batch * share, G);
}

bool packed_inverse(const Views& arrays) {
  require_cpu("damped_inverse", {&arrays});
  CurvatureReader in("damped_inverse", arrays);
  const std::int32_t step = *in.integers("step", 1);
  require(step >= 0, "damped_inverse: step must be >= 0, got ", step);
  const bool skip = *in.some<bool>("skip", DType::b8, 1);
  const std::int32_t* layout = in.integers("layout", 2);
  const double scale = in.number("own_scale") * in.scale();
  const View& dampings = in.take("damping");
  require_dtype("damped_inverse", "damping", dampings, DType::f32);
  require(dampings.size >= 1, "damped_inverse: damping must hold at least one number, got none");
  const std::int64_t layers = layout[1];
  Views matrices = in.list("A", layers);
  for (const View& v : in.list("G", layers)) matrices.push_back(v);
  const Views inverses = in.list("inverses", 2 * layers);
  in.require_end();
  if (skip || !is_due(step, layout[0])) return true;
  const std::int64_t at = step < dampings.size ? step : dampings.size - 1;
  const double damping = std::sqrt(static_cast<double>(static_cast<const float*>(dampings.data)[at]));
  std::vector<double> factors(static_cast<std::size_t>(layers), 1.0);
  factors.resize(matrices.size(), 1 / (scale * scale));
  return damped_inverse(cpu_context(), matrices, factors, std::vector<double>(matrices.size(), damping), inverses);
}

void packed_precondition(const Views& arrays) {
  const char* op = "precondition";
  require_cpu(op, {&arrays});
  CurvatureReader in(op, arrays);
  const double inv_scale = 1 / in.scale();
  std::int64_t factors = 0;  // up to the layout, the first array of integers
  while (factors + 1 < static_cast<std::int64_t>(arrays.size()) &&
         arrays[static_cast<std::size_t>(factors) + 1].dtype != DType::i32) {
    ++factors;
  }
  const Views A = in.list("A", factors / 2), G = in.list("G", factors - factors / 2);
  const View& kinds = in.take("layout");
  require_dtype(op, "layout", kinds, DType::i32);
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
  precondition(cpu_context(), inv_scale, grads, left, right, out);
}

}  // namespace boost_ext
