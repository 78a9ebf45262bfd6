// See ops/lars.h.
#include "common.cuh"
#include "ops/global_norm.h"
#include "ops/lars.h"

namespace boost_ext::cuda {
namespace {

// The settings of some tensors, by value: nothing is copied to the device before.
struct Part {
  static constexpr int kCapacity = 3000;
  std::int64_t first;  // of the whole call
  int count;
  float lr[kCapacity], decay[kCapacity];
  std::uint8_t apply[kCapacity];
};
struct Factors {
  double coefficient, eps, scale;
  const float* scale_at;
  bool clip;
};

__global__ void make_ratios(const Part __grid_constant__ part, const Factors f, const double* w_squares,
                            const double* g_squares, float* ratio, float* decay_ratio) {
  const int t = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (t >= part.count) return;
  const std::int64_t i = part.first + t;
  const double scale = f.scale_at != nullptr ? static_cast<double>(*f.scale_at) : f.scale;
  const double weight = sqrt(w_squares[i]), gradient = fabs(scale) * sqrt(g_squares[i]);
  double r = 1;
  if (part.apply[t] != 0 && weight != 0 && gradient != 0) {
    r = f.coefficient * weight / (gradient + static_cast<double>(part.decay[t]) * weight + f.eps);
    if (f.clip) {
      r = r / static_cast<double>(part.lr[t]);
      r = 1 < r ? 1 : r;  // a nan stays one
    }
  }
  ratio[i] = static_cast<float>(r);
  decay_ratio[i] = part.apply[t] != 0 ? static_cast<float>(r) : 0.0F;
}

}  // namespace

void lars(const Context& context, const LarsSettings& settings, Tensors weights, Tensors grads, float* ratio,
          float* decay_ratio) {
  const OnDevice device(context);
  const Workspace<double> squares(context, 2 * weights.count);
  double* of_grads = squares.get() + weights.count;
  sums_of_squares(context, weights, squares.get());
  sums_of_squares(context, grads, of_grads);
  const Number& scale = settings.scale;
  const Factors factors{settings.coefficient, settings.eps, scale.value,
                        scale.on_device() ? static_cast<const float*>(scale.at.data) : nullptr, settings.clip};
  Part part;
  for (std::int64_t first = 0; first < weights.count; first += part.count) {
    const std::int64_t rest = weights.count - first;
    part.first = first;
    part.count = static_cast<int>(rest < Part::kCapacity ? rest : Part::kCapacity);
    for (int t = 0; t < part.count; ++t) {
      const auto i = static_cast<std::size_t>(first + t);
      part.lr[t] = settings.lr[i], part.decay[t] = settings.decay[i], part.apply[t] = settings.apply[i];
    }
    launch(context, make_ratios, (part.count + kThreads - 1) / kThreads, kThreads, part, factors, squares.get(),
           of_grads, ratio, decay_ratio);
  }
}

}  // namespace boost_ext::cuda
