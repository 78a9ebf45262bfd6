#include "ops/lars.h"

#include <algorithm>
#include <cmath>

#include "ops/global_norm.h"

namespace boost_ext {
namespace {

constexpr const char* kOp = "lars";

// What both forms check. The ratios are checked by each, as they are called there.
Device require_arguments(const LarsSettings& settings, const Views& weights, const Views& grads, const View& ratio,
                         const View& decay_ratio, Overlap& overlap) {
  const Device device = require_device(kOp, {&weights, &grads}, {ratio, decay_ratio, settings.scale.at});
  const List w{"weights", weights};
  const List g{"grads", grads};
  require_floats(kOp, w);
  require_floats(kOp, g);
  require_same_sizes(kOp, g, w);
  const std::size_t n = weights.size();
  require_finite(kOp, "scale", settings.scale.value);
  require(settings.coefficient >= 0 && std::isfinite(settings.coefficient), kOp,
          ": coefficient must be finite and >= 0, got ", settings.coefficient);
  require(settings.eps >= 0 && std::isfinite(settings.eps), kOp, ": epsilon must be finite and >= 0, got ",
          settings.eps);
  require(settings.lr.size() == n && settings.decay.size() == n && settings.apply.size() == n, kOp,
          ": lr, weight_decay and apply must hold one value for each of the ", n, " weights");
  for (std::size_t i = 0; i < n; ++i) {
    require(settings.lr[i] >= 0, kOp, ": lr must be >= 0, got ", settings.lr[i]);
    require(settings.decay[i] >= 0, kOp, ": weight_decay must be >= 0, got ", settings.decay[i]);
  }
  overlap.reads(w);
  overlap.reads(g);
  overlap.reads("scale", settings.scale.at);
  overlap.check();
  return device;
}

void require_ratios(Name name, const View& ratios, std::size_t count, Overlap& overlap) {
  require_dtype(kOp, name, ratios, DType::f32);
  require_size(kOp, name, ratios, static_cast<std::int64_t>(count));
  require_writable(kOp, name, ratios);
  overlap.writes(name, ratios);
}

void write(const Context& context, Device device, const LarsSettings& settings, const Views& weights,
           const Views& grads, float* ratio, float* decay_ratio) {
  if (device == Device::cuda) return BOOST_EXT_CUDA(lars)(context, settings, weights, grads, ratio, decay_ratio);
  const std::size_t n = weights.size();
  std::vector<double> w_squares(n), g_squares(n);
  BOOST_EXT_CPU(sums_of_squares)(context, weights, w_squares.data());
  BOOST_EXT_CPU(sums_of_squares)(context, grads, g_squares.data());
  for (std::size_t i = 0; i < n; ++i) {
    const double weight = std::sqrt(w_squares[i]), gradient = std::abs(settings.scale.value) * std::sqrt(g_squares[i]);
    double r = 1;
    if (settings.apply[i] && weight != 0 && gradient != 0) {
      const double decay = settings.decay[i];
      r = settings.coefficient * weight / (gradient + decay * weight + settings.eps);
      if (settings.clip) r = std::min(r / static_cast<double>(settings.lr[i]), 1.0);
    }
    ratio[i] = static_cast<float>(r);
    decay_ratio[i] = settings.apply[i] ? ratio[i] : 0.0F;
  }
}

}  // namespace

void lars(const Context& context, const LarsSettings& settings, const Views& weights, const Views& grads,
          const View& ratios) {
  Overlap overlap(kOp);
  require_ratios("ratios", ratios, 2 * weights.size(), overlap);
  const Device device = require_arguments(settings, weights, grads, ratios, {}, overlap);
  auto* out = static_cast<float*>(ratios.data);
  write(context, device, settings, weights, grads, out, out + weights.size());
}

void lars(const Context& context, const LarsSettings& settings, const Views& weights, const Views& grads,
          const View& ratio, const View& decay_ratio) {
  Overlap overlap(kOp);
  require_ratios("ratio", ratio, weights.size(), overlap);
  require_ratios("decay_ratio", decay_ratio, weights.size(), overlap);
  const Device device = require_arguments(settings, weights, grads, ratio, decay_ratio, overlap);
  write(context, device, settings, weights, grads, static_cast<float*>(ratio.data),
        static_cast<float*>(decay_ratio.data));
}

}  // namespace boost_ext
