#include "ops/muon_step.h"

#include <algorithm>
#include <cmath>

namespace boost_ext {
namespace {

constexpr const char* kMuonStep = "muon_step";

void require_settings(const MuonSettings& s) {
  require(s.momentum >= 0 && s.momentum < 1, kMuonStep, ": momentum must be in [0, 1), got ", s.momentum);
  require(s.iterations >= 0, kMuonStep, ": ns_steps must be >= 0, got ", s.iterations);
  require(std::isfinite(s.eps) && s.eps >= 0, kMuonStep, ": eps must be finite and >= 0, got ", s.eps);
  require_shared_settings(kMuonStep, s.step, "adamw_eps");
}

// Two axes and more, and no second moment: a matrix.
bool is_matrix(const MatrixTensors& a, std::size_t i) { return a.weights[i].size > 0 && a.second[i].size == 0; }

void require_written(const MatrixTensors& a, const View& skip) {
  Overlap overlap(kMuonStep);
  if (skip.data != nullptr) overlap.reads("skip", skip);
  overlap.reads({"grads", a.grads});
  for (std::size_t i = 0; i < a.weights.size(); ++i) {
    const View& w = a.weights[i];
    const auto at = static_cast<std::int64_t>(i);
    const auto written = [&](const char* arg, const View& v) {
      require_dtype(kMuonStep, {arg, at}, v, DType::f32);
      require_size(kMuonStep, {arg, at}, v, w.size);
      require_writable(kMuonStep, {arg, at}, v);
      overlap.writes({arg, at}, v);
    };
    require_writable(kMuonStep, {"params", at}, w);
    overlap.writes({"params", at}, w);
    written("moments1", a.first[i]);
    if (is_matrix(a, i)) {
      require(w.ndim >= 2, kMuonStep, ": ", Name("moments2", at),
              " must be given for a tensor of fewer than two axes, ", "which is no matrix, got none");
    } else {
      written("moments2", a.second[i]);
    }
    if (a.masters.empty()) continue;
    if (w.dtype != DType::f32) {
      written("masters", a.masters[i]);
      continue;
    }
    require(a.masters[i].size == 0, kMuonStep, ": ", Name("masters", at),
            " must be empty beside a float32 parameter, got ", a.masters[i].size, " elements");
  }
  overlap.check();
}

double scale_of(const View& w, bool match_rms) {
  const auto rows = static_cast<double>(w.rows), columns = static_cast<double>(w.size) / rows;
  return match_rms ? 0.2 * std::sqrt(std::max(rows, columns)) : std::sqrt(std::max(1.0, rows / columns));
}

}  // namespace

MuonSettings muon_settings(const double* x, std::size_t count) {
  require(count == 5 || count == 6, kMuonStep, ": hyper must hold 5 or 6 numbers, got ", count);
  const bool allow_tf32 = count > 5 && x[5] != 0;
  MuonSettings settings{x[0], x[1] != 0, static_cast<std::int64_t>(x[2]), x[3], x[4] != 0, allow_tf32, {}};
  settings.step.rule = Rule::adamw;
  return settings;
}

void muon_step(const Context& context, const MuonSettings& settings, const MatrixTensors& a) {
  const View& skip = settings.step.at.skip;
  const Device device = require_device(kMuonStep, {&a.weights, &a.grads, &a.first, &a.second, &a.masters}, {skip});
  const List weights{"params", a.weights};
  require_lists(kMuonStep, a);
  if (!a.masters.empty()) require_same_count(kMuonStep, {"masters", a.masters}, weights);
  require_settings(settings);
  if (skip.data != nullptr) {
    require_dtype(kMuonStep, "skip", skip, DType::f32);
    require_size(kMuonStep, "skip", skip, 1);
  }
  const StepSettings all = spread_out(kMuonStep, settings.step, a.weights);
  require_written(a, skip);
  const auto* flag = static_cast<const float*>(skip.data);
  if (device == Device::cpu && flag != nullptr && *flag != 0) return;

  std::vector<std::size_t> matrices, others;
  for (std::size_t i = 0; i < a.weights.size(); ++i) (is_matrix(a, i) ? matrices : others).push_back(i);
  if (!others.empty()) step_others(context, all, a, others);
  if (matrices.empty()) return;
  const MatrixLists m(all, a, matrices);
  std::vector<float> rate;
  for (std::size_t k = 0; k < matrices.size(); ++k) {
    rate.push_back(
        static_cast<float>(static_cast<double>(all.lr[matrices[k]]) * scale_of(m.wide[k], settings.match_rms)));
  }
  const Views grads = some_of(a.grads, matrices), moments = some_of(a.first, matrices);
  const MuonStep step{&settings,           m.wide, m.narrow, grads, moments, m.scale.data(), m.keep.data(), rate.data(),
                      m.centralize.data(), flag};
  if (device == Device::cuda) return BOOST_EXT_CUDA(muon_step)(context, step);
  BOOST_EXT_CPU(muon_step)(context, step);
}

}  // namespace boost_ext
