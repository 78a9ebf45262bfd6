#include "ops/apollo_step.h"

#include <algorithm>
#include <cmath>

namespace boost_ext {
namespace {

constexpr const char* kApolloStep = "apollo_step";

}  // namespace

ApolloSettings apollo_settings(const double* x, std::size_t count) {
  require(count == 4, kApolloStep, ": hyper must hold 4 numbers, got ", count);
  ApolloSettings settings;
  settings.tensor_wise = x[0] != 0;
  settings.factor = x[1];
  settings.limit = x[2];
  settings.update_gap = update_gap_of(x[3]);
  settings.step.rule = Rule::adamw;
  return settings;
}

void apollo_step(const Context& context, const ApolloSettings& settings, const ProjectedTensors& a) {
  require(settings.limit == 0 || (std::isfinite(settings.limit) && settings.limit >= 1), kApolloStep,
          ": norm_growth must be finite and >= 1, got ", settings.limit);
  const auto moments = [&](std::size_t i) {
    const auto at = static_cast<std::int64_t>(i);
    require_size(kApolloStep, {"norms", at}, a.own[i], 1);
    const View& w = a.weights[i];
    const std::int64_t side = std::max(w.rows, w.size / w.rows), size = a.first[i].size;
    require(size > 0 && size % side == 0, kApolloStep, ": ", Name("moments1", at),
            " must have a multiple of the longer side of its matrix, ", side, ", as elements, got ", size);
    return size;
  };
  projected_step(kApolloStep, "norms", context, settings, a, moments, [&](const ProjectedStep& step) {
    if (step.device == Device::cuda) return BOOST_EXT_CUDA(apollo_step)(context, settings, step);
    BOOST_EXT_CPU(apollo_step)(context, settings, step);
  });
}

}  // namespace boost_ext
