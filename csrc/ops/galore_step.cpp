#include "ops/galore_step.h"

#include <algorithm>

namespace boost_ext {
namespace {

constexpr const char* kGaloreStep = "galore_step";

}  // namespace

ProjectedSettings galore_settings(const double* x, std::size_t count) {
  require(count == 2, kGaloreStep, ": hyper must hold 2 numbers, got ", count);
  ProjectedSettings settings;
  settings.factor = x[0];
  settings.update_gap = update_gap_of(x[1]);
  settings.step.rule = Rule::adamw;
  return settings;
}

void galore_step(const Context& context, const ProjectedSettings& settings, const ProjectedTensors& a) {
  require_cpu(kGaloreStep, {&a.weights, &a.grads, &a.first, &a.second, &a.own, &a.masters}, {settings.step.at.skip});
  const auto moments = [&](std::size_t i) {
    const View& w = a.weights[i];
    const std::int64_t side = std::min(w.rows, w.size / w.rows), size = a.own[i].size;
    require(size % side == 0 && size / side <= side, kGaloreStep, ": ",
            Name("projections", static_cast<std::int64_t>(i)), " must have 1 to ", side,
            " vectors of the shorter side, ", side, ", got ", size, " elements");
    return size / side * (w.size / side);
  };
  projected_step(kGaloreStep, "projections", context, settings, a, moments,
                 [&](const ProjectedStep& step) { BOOST_EXT_CPU(galore_step)(context, step); });
}

}  // namespace boost_ext
