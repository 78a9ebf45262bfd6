#include "ops/muon_step.h"

#include <algorithm>
#include <cmath>

namespace boost_ext {
namespace {

constexpr const char* kMuonStep = "muon_step";

// AdamW's hyperparameters: beta1, beta2, eps, and the others off.
std::vector<double> adamw_of(const StepSettings& s) {
  std::vector<double> hyper = s.hyper;
  hyper.resize(static_cast<std::size_t>(hyper_count(facts(Rule::adamw))));
  return hyper;
}

void require_settings(const MuonSettings& s) {
  require(s.momentum >= 0 && s.momentum < 1, kMuonStep, ": momentum must be in [0, 1), got ", s.momentum);
  require(s.iterations >= 0, kMuonStep, ": ns_steps must be >= 0, got ", s.iterations);
  require(std::isfinite(s.eps) && s.eps >= 0, kMuonStep, ": eps must be finite and >= 0, got ", s.eps);
  require(s.step.step >= 1, kMuonStep, ": step must be >= 1, got ", s.step.step);
  require_finite(kMuonStep, "inv_scale", s.step.scale);
  require(!s.step.lr.empty(), kMuonStep, ": lr must hold one value, or one for each parameter, got none");
  require(s.step.hyper.size() == 3, kMuonStep, ": adamw must hold 3 numbers, got ", s.step.hyper.size());
  RuleFacts adamw = facts(Rule::adamw);
  adamw.op = kMuonStep;
  adamw.hyper[2].name = "adamw_eps";
  require_hyper(adamw, adamw_of(s.step));
}

// Two axes and more, and no second moment: a matrix.
bool is_matrix(const MuonTensors& a, std::size_t i) { return a.weights[i].size > 0 && a.second[i].size == 0; }

void require_written(const MuonTensors& a, const View& skip) {
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

// The settings with one value a tensor, and those of some of the tensors.
StepSettings spread_out(const StepSettings& s, const Views& weights) {
  const std::size_t n = weights.size();
  StepSettings all = s;
  all.hyper = adamw_of(s);
  all.lr = spread(kMuonStep, "lr", s.lr, n, 0.0F);
  all.decay = spread(kMuonStep, "weight_decay", s.decay, n, 0.0F);
  all.ratio = spread(kMuonStep, "ratio", s.ratio, n, 1.0F);
  all.centralize = spread<unsigned char>(kMuonStep, "centralize", s.centralize, n, 0);
  require_non_negative(kMuonStep, "lr", all.lr);
  require_non_negative(kMuonStep, "weight_decay", all.decay);
  for (const float ratio : all.ratio) {
    require(std::isfinite(ratio), kMuonStep, ": ratio must be finite, got ", ratio);
    require(std::isfinite(static_cast<float>(s.scale * static_cast<double>(ratio))), kMuonStep,
            ": inv_scale * ratio must be finite in float32, got ", s.scale * static_cast<double>(ratio));
  }
  return all;
}

template <class T> std::vector<T> some_of(const std::vector<T>& all, const std::vector<std::size_t>& which) {
  std::vector<T> some;
  for (const std::size_t i : which) some.push_back(all[i]);
  return some;
}

// The tensors that AdamW steps, in a call of its own that has nothing left to refuse.
void step_others(const Context& context, const StepSettings& all, const MuonTensors& a,
                 const std::vector<std::size_t>& which) {
  StepSettings some = all;
  some.lr = some_of(all.lr, which);
  some.decay = some_of(all.decay, which);
  some.ratio = some_of(all.ratio, which);
  some.centralize = some_of(all.centralize, which);
  const Views masters = a.masters.empty() ? Views() : some_of(a.masters, which);
  optimizer_step(context, some, some_of(a.weights, which), masters, some_of(a.grads, which),
                 {some_of(a.first, which), some_of(a.second, which)});
}

double scale_of(const View& w, bool match_rms) {
  const auto rows = static_cast<double>(w.rows), columns = static_cast<double>(w.size) / rows;
  return match_rms ? 0.2 * std::sqrt(std::max(rows, columns)) : std::sqrt(std::max(1.0, rows / columns));
}

}  // namespace

MuonSettings muon_settings(const double* x, std::size_t count) {
  require(count == 5, kMuonStep, ": hyper must hold 5 numbers, got ", count);
  MuonSettings settings{x[0], x[1] != 0, static_cast<std::int64_t>(x[2]), x[3], x[4] != 0, {}};
  settings.step.rule = Rule::adamw;
  return settings;
}

void muon_step(const Context& context, const MuonSettings& settings, const MuonTensors& a) {
  const View& skip = settings.step.at.skip;
  const Device device = require_device(kMuonStep, {&a.weights, &a.grads, &a.first, &a.second, &a.masters}, {skip});
  const List weights{"params", a.weights};
  require_floats(kMuonStep, weights);
  require_same_count(kMuonStep, {"grads", a.grads}, weights);
  require_floats(kMuonStep, {"grads", a.grads});
  require_same_sizes(kMuonStep, {"grads", a.grads}, weights);
  require_same_count(kMuonStep, {"moments1", a.first}, weights);
  require_same_count(kMuonStep, {"moments2", a.second}, weights);
  if (!a.masters.empty()) require_same_count(kMuonStep, {"masters", a.masters}, weights);
  require_settings(settings);
  if (skip.data != nullptr) {
    require_dtype(kMuonStep, "skip", skip, DType::f32);
    require_size(kMuonStep, "skip", skip, 1);
  }
  const StepSettings all = spread_out(settings.step, a.weights);
  require_written(a, skip);
  const auto* flag = static_cast<const float*>(skip.data);
  if (device == Device::cpu && flag != nullptr && *flag != 0) return;

  std::vector<std::size_t> matrices, others;
  for (std::size_t i = 0; i < a.weights.size(); ++i) (is_matrix(a, i) ? matrices : others).push_back(i);
  if (!others.empty()) step_others(context, all, a, others);
  if (matrices.empty()) return;
  Views wide = some_of(a.weights, matrices), narrow(matrices.size());
  std::vector<float> scale, keep, rate;
  for (std::size_t k = 0; k < matrices.size(); ++k) {
    const std::size_t i = matrices[k];
    const auto lr = static_cast<double>(all.lr[i]);
    scale.push_back(static_cast<float>(all.scale * static_cast<double>(all.ratio[i])));
    keep.push_back(static_cast<float>(1 - lr * static_cast<double>(all.decay[i])));
    rate.push_back(static_cast<float>(lr * scale_of(wide[k], settings.match_rms)));
    if (a.masters.empty() || a.masters[i].size == 0) continue;
    narrow[k] = wide[k];
    wide[k].data = a.masters[i].data;
    wide[k].dtype = DType::f32;
  }
  const Views grads = some_of(a.grads, matrices), moments = some_of(a.first, matrices);
  const auto centralize = some_of(all.centralize, matrices);
  const MuonStep step{&settings,         wide, narrow, grads, moments, scale.data(), keep.data(), rate.data(),
                      centralize.data(), flag};
  if (device == Device::cuda) return BOOST_EXT_CUDA(muon_step)(context, step);
  BOOST_EXT_CPU(muon_step)(context, step);
}

}  // namespace boost_ext
