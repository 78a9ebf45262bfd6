// What each rule takes: the facts that checks and messages need.
#include <cmath>
#include <iterator>

#include "ops/optimizer_step.h"

namespace boost_ext {
namespace {

constexpr RuleFacts kRules[] = {
    {"sgd", "sgd_step", 0, 1, false, {"momentum", "dampening", "nesterov"}, {"accum"}},
    {"momentum", "momentum_step", 1, 1, false, {"momentum", "use_nesterov"}, {"moments"}, true},
    {"adam",
     "adam_step",
     2,
     3,
     false,
     {"beta1", "beta2", "eps", "use_nesterov"},
     {"moments1", "moments2", "max_moments2"},
     true},
    {"adam_weight_decay",
     "adam_weight_decay_step",
     2,
     2,
     true,
     {"beta1", "beta2", "eps"},
     {"moments1", "moments2"},
     true},
    {"lamb", "lamb_step", 2, 2, true, {"beta1", "beta2", "eps"}, {"moments1", "moments2"}, true},
    {"adagrad", "adagrad_step", 1, 1, false, {"update_slots"}, {"accum"}},
    {"proximal_adagrad", "proximal_adagrad_step", 1, 1, false, {"l1", "l2"}, {"accum"}},
    {"rmsprop", "rmsprop_step", 2, 2, false, {"decay", "momentum", "epsilon"}, {"mean_squares", "moments"}},
    {"centered_rmsprop",
     "centered_rmsprop_step",
     3,
     3,
     false,
     {"decay", "momentum", "epsilon"},
     {"mean_grads", "mean_squares", "moments"}},
    {"ftrl", "ftrl_step", 2, 2, false, {"l1", "l2", "lr_power"}, {"accum", "linear"}},
};

int hyper_count(const RuleFacts& rule) {
  int n = 0;
  while (n < kMaxHyper && rule.hyper[n]) ++n;
  return n;
}

}  // namespace

const RuleFacts& facts(Rule rule) { return kRules[static_cast<std::size_t>(rule)]; }

std::vector<std::string> rule_names() {
  std::vector<std::string> names;
  for (const RuleFacts& rule : kRules) names.emplace_back(rule.name);
  return names;
}

Rule find_rule(const std::string& name) {
  std::string known;
  for (std::size_t i = 0; i < std::size(kRules); ++i) {
    if (name == kRules[i].name) return static_cast<Rule>(i);
    known += text(i ? ", " : "", kRules[i].name);
  }
  throw std::invalid_argument(text("optimizer_step: rule must be one of ", known, ", got ", name));
}

void require_hyper(const RuleFacts& rule, const std::vector<double>& hyper) {
  const auto n = static_cast<std::size_t>(hyper_count(rule));
  require(hyper.size() == n, rule.op, ": rule ", rule.name, " must get ", n, " hyperparameters, got ", hyper.size());
  for (std::size_t i = 0; i < n; ++i) {
    const std::string key = rule.hyper[i];
    const double x = hyper[i];
    const auto narrow = static_cast<float>(x);
    require(std::isfinite(narrow), rule.op, ": ", key, " must be finite in float32, got ", x);
    if (key == "beta1" || key == "beta2") require(x > 0 && x < 1, rule.op, ": ", key, " must be in (0, 1), got ", x);
    if (key == "eps" || key == "epsilon") require(narrow > 0, rule.op, ": ", key, " must be > 0 in float32, got ", x);
    if (key == "lr_power") require(x <= 0, rule.op, ": lr_power must be <= 0, got ", x);
    if (key == "l1" || key == "l2" || key == "momentum" || key == "dampening" || key == "decay") {
      require(x >= 0, rule.op, ": ", key, " must be >= 0, got ", x);
    }
  }
}

}  // namespace boost_ext
