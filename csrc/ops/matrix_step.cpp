#include "ops/matrix_step.h"

#include <cmath>

namespace boost_ext {
namespace {

// AdamW's hyperparameters: beta1, beta2, eps, and the others off.
std::vector<double> adamw_of(const StepSettings& s) {
  std::vector<double> hyper = s.hyper;
  hyper.resize(static_cast<std::size_t>(hyper_count(facts(Rule::adamw))));
  return hyper;
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

}  // namespace boost_ext
