#include "ops/matrix_step.h"

#include <cmath>
#include <limits>

namespace boost_ext {
namespace {

// AdamW's hyperparameters: beta1, beta2, eps, and the others off.
std::vector<double> adamw_of(const StepSettings& s) {
  std::vector<double> hyper = s.hyper;
  hyper.resize(static_cast<std::size_t>(hyper_count(facts(Rule::adamw))));
  return hyper;
}

void require_projected_settings(const char* op, const ProjectedSettings& s, std::size_t tensors) {
  require(std::isfinite(s.factor) && s.factor >= 0, op, ": scale must be finite and >= 0, got ", s.factor);
  require(s.update_gap >= 1, op, ": update_proj_gap must be >= 1, got ", s.update_gap);
  require(s.seed >= 0, op, ": seed must be >= 0, got ", s.seed);
  require(s.numbers.empty() || s.numbers.size() == tensors, op, ": tensor_numbers must hold one for each of the ",
          tensors, " parameters, got ", s.numbers.size());
  for (const std::int64_t number : s.numbers) {
    require(number >= 0 && number <= std::numeric_limits<std::uint32_t>::max(), op,
            ": tensor_numbers must be >= 0 and < 2**32, got ", number);
  }
  require_shared_settings(op, s.step, "eps");
  require((s.step.step - 1) / s.update_gap <= std::numeric_limits<std::uint32_t>::max(), op,
          ": step must be at most 2**32 times update_proj_gap, got ", s.step.step);
}

void require_projected(const char* op, const char* own, const ProjectedTensors& a, const View& skip,
                       const std::function<std::int64_t(std::size_t)>& moments) {
  Overlap overlap(op);
  if (skip.data != nullptr) overlap.reads("skip", skip);
  overlap.reads({"grads", a.grads});
  for (std::size_t i = 0; i < a.weights.size(); ++i) {
    const View& w = a.weights[i];
    const auto at = static_cast<std::int64_t>(i);
    const auto written = [&](const char* arg, const View& v, std::int64_t size) {
      require_dtype(op, {arg, at}, v, DType::f32);
      require_size(op, {arg, at}, v, size);
      require_writable(op, {arg, at}, v);
      overlap.writes({arg, at}, v);
    };
    require_writable(op, {"params", at}, w);
    overlap.writes({"params", at}, w);
    std::int64_t size = w.size;
    if (a.own[i].size != 0) {
      require(w.ndim >= 2 && w.size > 0, op, ": ", Name(own, at),
              " must be none for a tensor that is empty or has fewer than two axes, got an array");
      require_dtype(op, {own, at}, a.own[i], DType::f32);
      size = moments(i);
      written(own, a.own[i], a.own[i].size);
    }
    written("moments1", a.first[i], size);
    written("moments2", a.second[i], size);
    if (a.masters.empty()) continue;
    if (w.dtype != DType::f32) {
      written("masters", a.masters[i], w.size);
      continue;
    }
    require(a.masters[i].size == 0, op, ": ", Name("masters", at), " must be empty beside a float32 parameter, got ",
            a.masters[i].size, " elements");
  }
  overlap.check();
}

}  // namespace

void require_shared_settings(const char* op, const StepSettings& s, const char* eps) {
  require(s.step >= 1, op, ": step must be >= 1, got ", s.step);
  require_finite(op, "inv_scale", s.scale);
  require(!s.lr.empty(), op, ": lr must hold one value, or one for each parameter, got none");
  require(s.hyper.size() == 3, op, ": adamw must hold 3 numbers, got ", s.hyper.size());
  RuleFacts adamw = facts(Rule::adamw);
  adamw.op = op;
  adamw.hyper[2].name = eps;
  require_hyper(adamw, adamw_of(s));
}

StepSettings spread_out(const char* op, const StepSettings& s, const Views& weights) {
  const std::size_t n = weights.size();
  StepSettings all = s;
  all.hyper = adamw_of(s);
  all.lr = spread(op, "lr", s.lr, n, 0.0F);
  all.decay = spread(op, "weight_decay", s.decay, n, 0.0F);
  all.ratio = spread(op, "ratio", s.ratio, n, 1.0F);
  all.centralize = spread<unsigned char>(op, "centralize", s.centralize, n, 0);
  require_non_negative(op, "lr", all.lr);
  require_non_negative(op, "weight_decay", all.decay);
  for (const float ratio : all.ratio) {
    require(std::isfinite(ratio), op, ": ratio must be finite, got ", ratio);
    require(std::isfinite(static_cast<float>(s.scale * static_cast<double>(ratio))), op,
            ": inv_scale * ratio must be finite in float32, got ", s.scale * static_cast<double>(ratio));
  }
  return all;
}

void require_lists(const char* op, const MatrixTensors& a) {
  const List weights{"params", a.weights};
  require_floats(op, weights);
  require_same_count(op, {"grads", a.grads}, weights);
  require_floats(op, {"grads", a.grads});
  require_same_sizes(op, {"grads", a.grads}, weights);
  require_same_count(op, {"moments1", a.first}, weights);
  require_same_count(op, {"moments2", a.second}, weights);
}

void step_others(const Context& context, const StepSettings& all, const MatrixTensors& a,
                 const std::vector<std::size_t>& which) {
  StepSettings some = all;
  some.rule = Rule::adamw;
  some.lr = some_of(all.lr, which);
  some.decay = some_of(all.decay, which);
  some.ratio = some_of(all.ratio, which);
  some.centralize = some_of(all.centralize, which);
  const Views masters = a.masters.empty() ? Views() : some_of(a.masters, which);
  optimizer_step(context, some, some_of(a.weights, which), masters, some_of(a.grads, which),
                 {some_of(a.first, which), some_of(a.second, which)});
}

MatrixLists::MatrixLists(const StepSettings& all, const MatrixTensors& a, const std::vector<std::size_t>& which)
    : wide(some_of(a.weights, which)), narrow(which.size()), centralize(some_of(all.centralize, which)) {
  for (std::size_t k = 0; k < which.size(); ++k) {
    const std::size_t i = which[k];
    scale.push_back(static_cast<float>(all.scale * static_cast<double>(all.ratio[i])));
    keep.push_back(static_cast<float>(1 - static_cast<double>(all.lr[i]) * static_cast<double>(all.decay[i])));
    if (a.masters.empty() || a.masters[i].size == 0) continue;
    narrow[k] = wide[k];
    wide[k].data = a.masters[i].data;
    wide[k].dtype = DType::f32;
  }
}

std::int64_t update_gap_of(double number) {
  return number >= 1 && number <= 0x1p53 ? static_cast<std::int64_t>(number) : 0;
}

void projected_step(const char* op, const char* own, const Context& context, const ProjectedSettings& settings,
                    const ProjectedTensors& a, const std::function<std::int64_t(std::size_t)>& moments,
                    const std::function<void(const ProjectedStep&)>& kernel) {
  const View& skip = settings.step.at.skip;
  const Device device = require_device(op, {&a.weights, &a.grads, &a.first, &a.second, &a.own, &a.masters}, {skip});
  const List weights{"params", a.weights};
  require_lists(op, a);
  require_same_count(op, {own, a.own}, weights);
  if (!a.masters.empty()) require_same_count(op, {"masters", a.masters}, weights);
  require_projected_settings(op, settings, a.weights.size());
  if (skip.data != nullptr) {
    require_dtype(op, "skip", skip, DType::f32);
    require_size(op, "skip", skip, 1);
  }
  const StepSettings all = spread_out(op, settings.step, a.weights);
  require_projected(op, own, a, skip, moments);
  const auto* flag = static_cast<const float*>(skip.data);
  if (device == Device::cpu && flag != nullptr && *flag != 0) return;

  std::vector<std::size_t> matrices, others;
  for (std::size_t i = 0; i < a.weights.size(); ++i) (a.own[i].size != 0 ? matrices : others).push_back(i);
  if (!others.empty()) step_others(context, all, a, others);
  if (matrices.empty()) return;
  const MatrixLists m(all, a, matrices);
  std::vector<DropoutKey> keys;
  const auto draw = static_cast<std::uint32_t>((all.step - 1) / settings.update_gap);
  for (const std::size_t i : matrices) {
    const std::int64_t number = settings.numbers.empty() ? static_cast<std::int64_t>(i) : settings.numbers[i];
    keys.push_back({static_cast<std::uint64_t>(settings.seed), draw, static_cast<std::uint32_t>(number)});
  }
  const Views grads = some_of(a.grads, matrices), first = some_of(a.first, matrices);
  const Views second = some_of(a.second, matrices), owned = some_of(a.own, matrices);
  const std::vector<float> lr = some_of(all.lr, matrices);
  kernel({&settings, m.wide, m.narrow, grads, first, second, owned, m.scale.data(), m.keep.data(), lr.data(),
          m.centralize.data(), keys.data(), flag, device});
}

}  // namespace boost_ext
