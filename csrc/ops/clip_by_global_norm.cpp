#include "ops/clip_by_global_norm.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "ops/global_norm.h"
#include "ops/unscale_and_check.h"

namespace boost_ext {
namespace {

void require_settings(const char* op, const ClipSettings& settings) {
  require(std::isfinite(settings.clip_norm) && settings.clip_norm > 0, op, ": clip_norm must be finite and > 0, got ",
          settings.clip_norm);
  require(std::isfinite(settings.scale) && settings.scale > 0, op, ": scale must be finite and > 0, got ",
          settings.scale);
}

}  // namespace

double clip_by_global_norm(const Context& context, const Views& grads, const ClipSettings& settings) {
  const char* op = "clip_by_global_norm";
  require_settings(op, settings);
  require_cpu(op, {&grads});
  const List list{"grads", grads};
  require_floats(op, list);
  require_writables(op, list);
  const double norm = global_norm(context, grads) / settings.scale;
  if (std::isfinite(norm) && norm > settings.clip_norm)
    unscale_and_check(context, grads, std::max(settings.clip_norm / norm, kLeastSubnormal));
  return norm;
}

void clip_by_global_norm(const Context& context, const Views& grads, double clip_norm, const Number& scale,
                         const View& out) {
  const char* op = "clip_by_global_norm";
  require_settings(op, {clip_norm, scale.on_device() ? 1 : scale.value});
  const Device device = require_device(op, {&grads}, {scale.at, out});
  const List list{"grads", grads};
  require_floats(op, list);
  require_writables(op, list);
  require_result(op, "out", out, DType::f64);
  const std::vector<std::size_t> first = first_occurrence(grads);
  Views distinct;
  Overlap overlap(op);
  overlap.writes("out", out);
  overlap.reads("scale", scale.at);
  for (std::size_t i = 0; i < grads.size(); ++i) {
    if (first[i] != i) continue;
    distinct.push_back(grads[i]);
    overlap.writes(Name("grads", static_cast<std::int64_t>(i)), grads[i]);
  }
  overlap.check();
  auto* norm = static_cast<double*>(out.data);
  if (device == Device::cuda)
    return BOOST_EXT_CUDA(clip_by_global_norm)(context, grads, distinct, clip_norm, scale, norm);
  *norm = clip_by_global_norm(context, grads, {clip_norm, scale.value});
}

bool check_and_clip(const Context& context, const Views& grads, double scale, const ClipSettings& settings,
                    const View& report, const View& norm, const View& divisor) {
  const char* op = "clip_by_global_norm";
  require_settings(op, settings);
  require(std::isfinite(scale) && scale > 0, op, ": scale must be finite and > 0, got ", scale);
  require_cpu(op, {&grads}, {report, norm, divisor});
  require_result(op, "norm", norm, DType::f32);
  require_result(op, "divisor", divisor, DType::f32);
  std::vector<double> squares;
  const bool found = check_and_square(context, grads, 1 / scale, report, squares);
  const double length = std::sqrt(std::accumulate(squares.begin(), squares.end(), 0.0)) / scale / settings.scale;
  *static_cast<float*>(norm.data) = static_cast<float>(length);
  const double excess = found ? 1 : std::max(length / settings.clip_norm, 1.0);
  *static_cast<float*>(divisor.data) = static_cast<float>(scale * excess);
  return found;
}

}  // namespace boost_ext
