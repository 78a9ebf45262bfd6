#include "ops/lars.h"

#include <algorithm>
#include <cmath>

#include "ops/global_norm.h"

namespace boost_ext {
namespace {

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

void lars(const Context& context, const Views& weights, const Views& grads, double coefficient, double eps, bool clip,
          const Number& scale, const std::vector<float>& lr, const std::vector<float>& decay,
          const std::vector<unsigned char>& apply, const View& ratio, const View& decay_ratio) {
  const char* op = kLars.op;
  const Device device =
      check(kLars, weights, grads, coefficient, eps, clip, scale, lr, decay, apply, ratio, decay_ratio);
  const LarsSettings settings{coefficient, eps, clip, scale, lr, decay, apply};
  const std::size_t n = weights.size();
  require(settings.lr.size() == n && settings.decay.size() == n && settings.apply.size() == n, op,
          ": lr, weight_decay and apply must hold one value for each of the ", n, " weights");
  for (std::size_t i = 0; i < n; ++i) {
    require(settings.lr[i] >= 0, op, ": lr must be >= 0, got ", settings.lr[i]);
    require(settings.decay[i] >= 0, op, ": weight_decay must be >= 0, got ", settings.decay[i]);
  }
  require_size(op, "ratio", ratio, static_cast<std::int64_t>(n));
  require_size(op, "decay_ratio", decay_ratio, static_cast<std::int64_t>(n));
  write(context, device, settings, weights, grads, static_cast<float*>(ratio.data),
        static_cast<float*>(decay_ratio.data));
}

}  // namespace boost_ext
