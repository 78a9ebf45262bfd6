#include "ops/lars.h"

#include <algorithm>
#include <cmath>

#include "ops/global_norm.h"

namespace boost_ext {

void lars(const Context& context, const LarsSettings& settings, const Views& weights, const Views& grads,
          const View& ratios) {
  const char* op = "lars";
  require_cpu(op, {&weights, &grads}, {ratios});
  const List w{"weights", weights};
  const List g{"grads", grads};
  require_floats(op, w);
  require_floats(op, g);
  require_same_sizes(op, g, w);
  const std::size_t n = weights.size();
  require_dtype(op, "ratios", ratios, DType::f32);
  require_size(op, "ratios", ratios, 2 * static_cast<std::int64_t>(n));
  require_writable(op, "ratios", ratios);
  require_finite(op, "scale", settings.scale);
  require(settings.coefficient >= 0 && std::isfinite(settings.coefficient), op,
          ": coefficient must be finite and >= 0, got ", settings.coefficient);
  require(settings.eps >= 0 && std::isfinite(settings.eps), op, ": epsilon must be finite and >= 0, got ",
          settings.eps);
  require(settings.lr.size() == n && settings.decay.size() == n && settings.apply.size() == n, op,
          ": lr, weight_decay and apply must hold one value for each of the ", n, " weights");
  for (std::size_t i = 0; i < n; ++i) {
    require(settings.lr[i] >= 0, op, ": lr must be >= 0, got ", settings.lr[i]);
    require(settings.decay[i] >= 0, op, ": weight_decay must be >= 0, got ", settings.decay[i]);
  }
  Overlap overlap(op);
  overlap.reads(w);
  overlap.reads(g);
  overlap.writes("ratios", ratios);
  overlap.check();

  std::vector<double> w_squares(n), g_squares(n);
  BOOST_EXT_CPU(sums_of_squares)(context, weights, w_squares.data());
  BOOST_EXT_CPU(sums_of_squares)(context, grads, g_squares.data());
  auto* out = static_cast<float*>(ratios.data);
  for (std::size_t i = 0; i < n; ++i) {
    const double weight = std::sqrt(w_squares[i]), gradient = std::abs(settings.scale) * std::sqrt(g_squares[i]);
    double r = 1;
    if (settings.apply[i] && weight != 0 && gradient != 0) {
      const double decay = settings.decay[i];
      r = settings.coefficient * weight / (gradient + decay * weight + settings.eps);
      if (settings.clip) r = std::min(r / static_cast<double>(settings.lr[i]), 1.0);
    }
    out[i] = static_cast<float>(r);
    out[n + i] = settings.apply[i] ? out[i] : 0.0F;
  }
}

}  // namespace boost_ext
