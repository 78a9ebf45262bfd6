#include "ops/precondition.h"

#include <algorithm>

namespace boost_ext {
namespace {

// `count`: rows or columns of the gradient, which the factor must be as many of.
Factor factor(const Name& name, const View& v, std::int64_t count) {
  require_dtype(kPrecondition.op, name, v, DType::f32);
  const Factor diagonal{static_cast<const float*>(v.data), 0};
  if (v.ndim == 1) {
    require_size(kPrecondition.op, name, v, count);
    return diagonal;
  }
  std::int64_t b = 0;
  if (v.ndim == 3 && v.rows > 0) {
    while ((b + 1) * (b + 1) * v.rows <= v.size) ++b;
  }
  require(b > 0 && b * b * v.rows == v.size && (count + b - 1) / b == v.rows, kPrecondition.op, ": ", name,
          " must have shape (blocks, b, b) with as many blocks as ", count, " need, or (d,), got ", v.ndim, " axes, ",
          v.rows, " rows and ", v.size, " elements");
  return {diagonal.data, b};
}

}  // namespace

void precondition(const Context& context, const Views& grads, const Views& left, const Views& right, double inv_scale,
                  const Views& out) {
  const Device device = check(kPrecondition, grads, left, right, inv_scale, out);
  const List from{"grads", grads};
  require_same_count(kPrecondition.op, {"left", left}, from);
  require_same_count(kPrecondition.op, {"right", right}, from);
  std::vector<Factor> lefts, rights;
  for (std::size_t i = 0; i < grads.size(); ++i) {
    const auto index = static_cast<std::int64_t>(i);
    const View& g = grads[i];
    require((left[i].size == 0) == (right[i].size == 0), kPrecondition.op, ": left[", i, "] and right[", i,
            "] must both be empty or none, got ", left[i].size, " and ", right[i].size, " elements");
    const bool curved = left[i].size > 0 && g.size > 0;
    lefts.push_back(curved ? factor({"left", index}, left[i], g.rows) : Factor{nullptr, 0});
    rights.push_back(curved ? factor({"right", index}, right[i], g.size / g.rows) : Factor{nullptr, 0});
  }
  const auto scale = static_cast<float>(inv_scale);
  if (device == Device::cuda) {
    return BOOST_EXT_CUDA(precondition)(context, scale, grads, lefts.data(), rights.data(), out);
  }
  BOOST_EXT_CPU(precondition)(context, scale, grads, lefts.data(), rights.data(), out);
}

void precondition_layers(const Context& context, double inv_scale, const Views& A, const Views& G, const View& layout,
                         const Views& grads, const Views& out) {
  const auto* kinds = static_cast<const std::int32_t*>(layout.data);
  const auto curved = layout.size - std::count(kinds, kinds + layout.size, 0);
  const std::size_t factors = A.size() + G.size();
  require(static_cast<std::int64_t>(factors) == 2 * curved, kPrecondition.op, ": must get two factors for each of ",
          curved, " layers, got ", factors);
  View none;
  none.size = 0;
  Views left, right;
  std::size_t next = 0;
  for (std::int64_t i = 0; i < layout.size; ++i) {
    const std::int32_t kind = kinds[i];
    left.push_back(kind == 0 ? none : kind == 1 ? G[next] : A[next]);
    right.push_back(kind == 0 ? none : kind == 1 ? A[next] : G[next]);
    next += kind != 0;
  }
  precondition(context, grads, left, right, inv_scale, out);
}

}  // namespace boost_ext
