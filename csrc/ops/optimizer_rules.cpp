// What each rule takes: the facts that checks and messages need.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include "ops/optimizer_step.h"

namespace boost_ext {
namespace {

constexpr Hyper kMomentum{"momentum", Bound::non_negative, 0}, kDampening{"dampening", Bound::non_negative, 0};
constexpr Hyper kCautious{"cautious", Bound::flag, 0};
constexpr Hyper kNesterov{"use_nesterov", Bound::flag, 0};
constexpr Hyper kBeta1{"beta1", Bound::unit, 0.9}, kBeta2{"beta2", Bound::unit, 0.999};
constexpr Hyper kL1{"l1", Bound::non_negative, 0}, kL2{"l2", Bound::non_negative, 0};
constexpr Hyper kDecay{"decay", Bound::non_negative, 0.9}, kEpsilon{"epsilon", Bound::positive, 1e-10};

// Made from all steps so far.
constexpr Hyper kAveragingWeight{"averaging_weight", Bound::fraction, std::numeric_limits<double>::quiet_NaN()};

constexpr Hyper eps(double standard) { return {"eps", Bound::positive, standard}; }

constexpr RuleFacts kRules[] = {
    {"sgd", "sgd_step", 0, 1, false, {kMomentum, kDampening, {"nesterov", Bound::flag, 0}}, {"accum"}},
    {"momentum",
     "momentum_step",
     1,
     1,
     false,
     {{"momentum", Bound::non_negative, 0.9}, kNesterov, kCautious},
     {"moments"},
     true},
    {"adam",
     "adam_step",
     2,
     3,
     false,
     {kBeta1, kBeta2, eps(1e-8), kNesterov, kCautious},
     {"moments1", "moments2", "max_moments2"},
     true,
     true},
    {"adam_weight_decay",
     "adam_weight_decay_step",
     2,
     2,
     true,
     {kBeta1, kBeta2, eps(1e-6), kCautious},
     {"moments1", "moments2"},
     true},
    {"adamw", "adamw_step", 2, 2, true, {kBeta1, kBeta2, eps(1e-8), kCautious}, {"moments1", "moments2"}, true, true},
    {"lamb", "lamb_step", 2, 2, true, {kBeta1, kBeta2, eps(1e-6)}, {"moments1", "moments2"}, true, true},
    {"lion", "lion_step", 1, 1, true, {kBeta1, {"beta2", Bound::unit, 0.99}, kCautious}, {"moments"}, true},
    {"nadamw",
     "nadamw_step",
     2,
     2,
     true,
     {kBeta1, kBeta2, eps(1e-8), {"momentum_decay", Bound::non_negative, 0.004}, kCautious},
     {"moments1", "moments2"},
     true,
     true},
    {"ademamix",
     "ademamix_step",
     3,
     3,
     true,
     {kBeta1,
      kBeta2,
      eps(1e-8),
      {"beta3", Bound::open_unit, 0.9999},
      {"alpha", Bound::non_negative, 5},
      {"alpha_steps", Bound::non_negative, 0},
      {"beta3_steps", Bound::non_negative, 0},
      kCautious},
     {"moments1", "moments2", "slow_moments1"},
     false,
     true},
    {"adan",
     "adan_step",
     4,
     4,
     true,
     {{"beta1", Bound::unit, 0.98}, {"beta2", Bound::unit, 0.92}, {"beta3", Bound::unit, 0.99}, eps(1e-8), kCautious},
     {"moments", "squares", "differences", "last_grads"},
     false,
     true},
    {"schedule_free_sgd",
     "schedule_free_sgd_step",
     1,
     1,
     false,
     {kAveragingWeight, {"momentum", Bound::open_unit, 0.9}},
     {"z"}},
    {"schedule_free_adamw",
     "schedule_free_adamw_step",
     2,
     2,
     true,
     {kAveragingWeight, {"beta1", Bound::open_unit, 0.9}, kBeta2, eps(1e-8)},
     {"z", "moments2"},
     false,
     true},
    {"adagrad", "adagrad_step", 1, 1, false, {{"update_slots", Bound::flag, 1}}, {"accum"}},
    {"proximal_adagrad", "proximal_adagrad_step", 1, 1, false, {kL1, kL2}, {"accum"}},
    {"rmsprop", "rmsprop_step", 2, 2, false, {kDecay, kMomentum, kEpsilon}, {"mean_squares", "moments"}},
    {"centered_rmsprop",
     "centered_rmsprop_step",
     3,
     3,
     false,
     {kDecay, kMomentum, kEpsilon},
     {"mean_grads", "mean_squares", "moments"}},
    {"ftrl", "ftrl_step", 2, 2, false, {kL1, kL2, {"lr_power", Bound::non_positive, -0.5}}, {"accum", "linear"}},
};

}  // namespace

int hyper_count(const RuleFacts& rule) {
  int n = 0;
  while (n < kMaxHyper && rule.hyper[n].name != nullptr) ++n;
  return n;
}

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
    const char* key = rule.hyper[i].name;
    const double x = hyper[i];
    const auto narrow = static_cast<float>(x);
    require(std::isfinite(narrow), rule.op, ": ", key, " must be finite in float32, got ", x);
    switch (rule.hyper[i].bound) {
      case Bound::unit:
        require(x >= 0 && x < 1, rule.op, ": ", key, " must be in [0, 1), got ", x);
        break;
      case Bound::open_unit:
        require(x > 0 && x < 1, rule.op, ": ", key, " must be in (0, 1), got ", x);
        break;
      case Bound::fraction:
        require(x >= 0 && x <= 1, rule.op, ": ", key, " must be in [0, 1], got ", x);
        break;
      case Bound::positive:
        require(narrow > 0, rule.op, ": ", key, " must be > 0 in float32, got ", x);
        break;
      case Bound::non_negative:
        require(x >= 0, rule.op, ": ", key, " must be >= 0, got ", x);
        break;
      case Bound::non_positive:
        require(x <= 0, rule.op, ": ", key, " must be <= 0, got ", x);
        break;
      case Bound::finite:
      case Bound::flag:
        break;
    }
  }
}

double averaging_weight(const AveragingSettings& settings, AveragingSums& sums, std::int64_t step,
                        std::vector<float>& lr) {
  require_non_negative("optimizer_step", "lr", lr);
  const auto t = static_cast<double>(step);
  const double warmup = t < settings.warmup_steps ? t / settings.warmup_steps : 1;
  for (float& rate : lr) {
    const double now = warmup * static_cast<double>(rate);
    sums.lr_max = std::max(sums.lr_max, now);
    rate = static_cast<float>(now);
  }
  const double weight = std::pow(t, settings.r) * std::pow(sums.lr_max, settings.weight_lr_power);
  sums.weight_sum += weight;
  return sums.weight_sum > 0 ? weight / sums.weight_sum : 0;
}

float beta_power(double beta, std::int64_t step) {
  return static_cast<float>(std::pow(beta, static_cast<double>(step)));
}

}  // namespace boost_ext
