// The optimizers inside MindSpore: see mindspore.cpp and step_layout.h.
#include <algorithm>
#include <cstring>
#include <optional>

#include "doors/graph.h"
#include "doors/step_layout.h"
#include "ops/lars.h"
#include "ops/optimizer_step.h"

namespace boost_ext {
namespace {

constexpr const char* kOp = "optimizer_step";

// The settings of some of the tensors.
StepSettings chosen(const StepSettings& all, const std::vector<std::size_t>& which) {
  StepSettings some = all;
  some.lr.clear();
  some.decay.clear();
  some.centralize.clear();
  some.first.clear();
  some.numbers.clear();
  if (all.ratio.size() > 1) some.ratio.clear();
  for (std::size_t i : which) {
    some.numbers.push_back(static_cast<std::int64_t>(i));
    some.lr.push_back(all.lr[i]);
    some.decay.push_back(all.decay[i]);
    some.centralize.push_back(all.centralize[i]);
    if (!all.first.empty()) some.first.push_back(all.first[i]);
    if (all.ratio.size() > 1) some.ratio.push_back(all.ratio[i]);
  }
  return some;
}

// For each state a list like it: scales beside uint8, empty views beside others. Nothing without uint8.
std::vector<Views> scales_of(Reader& in, const std::vector<Views>& state) {
  std::vector<Views> scales(state.size());
  bool coded = false;
  for (std::size_t k = 0; k < state.size(); ++k) {
    for (const View& v : state[k]) {
      const bool here = v.dtype == DType::u8;
      scales[k].push_back(here ? in.take("scales") : View());
      coded = coded || here;
    }
  }
  if (!coded) scales.clear();
  return scales;
}

// What makes c of Schedule-Free, which takes the place of its settings in hyper, and the warm-up of the learning rates.
class Averaging {
 public:
  Averaging(Reader& in, std::vector<double>& hyper, std::int64_t step, std::vector<float>& lr) {
    AveragingSettings own;
    constexpr std::ptrdiff_t count = sizeof own / sizeof(double);
    require(hyper.size() >= count, kOp, ": hyper must hold ", count, " numbers of the average, got ", hyper.size() + 1);
    std::memcpy(&own, hyper.data(), sizeof own);
    lr_max_ = in.written<double>("lr_max", DType::f64);
    weight_sum_ = in.written<double>("weight_sum", DType::f64);
    require(in.flag("train_mode"), kOp,
            ": train_mode must be true for a step, got false: call train() of the optimizer");
    sums_ = {*lr_max_, *weight_sum_};
    hyper.erase(hyper.begin() + 1, hyper.begin() + count);
    hyper[0] = averaging_weight(own, sums_, step, lr);
  }
  void count() const {
    *lr_max_ = sums_.lr_max;
    *weight_sum_ = sums_.weight_sum;
  }

 private:
  double* lr_max_;
  double* weight_sum_;
  AveragingSums sums_;
};

// A call in which some gradients hold rows only: these one by one, the others together.
void step_rows(const StepSettings& settings, const Views& weights, const Views& masters, const Views& grads,
               const std::vector<Views>& state, const std::vector<Views>& scales, const Views& indices) {
  std::vector<std::size_t> whole;
  Views dense_weights, dense_masters, dense_grads;
  std::vector<Views> dense_state(state.size()), dense_scales(scales.size());
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (indices[i].ndim == 0) {
      whole.push_back(i);
      dense_weights.push_back(weights[i]);
      if (!masters.empty()) dense_masters.push_back(masters[i]);
      dense_grads.push_back(grads[i]);
      for (std::size_t k = 0; k < state.size(); ++k) {
        dense_state[k].push_back(state[k][i]);
        if (!scales.empty()) dense_scales[k].push_back(scales[k][i]);
      }
      continue;
    }
    Views rows_of_state;
    for (const Views& views : state) rows_of_state.push_back(views[i]);
    optimizer_step_rows(cpu_context(), chosen(settings, {i}), weights[i], masters.empty() ? View() : masters[i],
                        indices[i], grads[i], rows_of_state);
  }
  if (whole.empty()) return;
  optimizer_step(cpu_context(), chosen(settings, whole), dense_weights, dense_masters, dense_grads, dense_state,
                 dense_scales);
}

}  // namespace

std::vector<std::string> layout_rules() {
  std::vector<std::string> rules = rule_names();
  rules.emplace_back("adafactor");
  rules.emplace_back("muon");
  rules.emplace_back("apollo");
  rules.emplace_back("galore");
  return rules;
}

BOOST_EXT_GRAPH_OP(optimizer_step) {
  const StepHead head(in);
  if (head.skip) return;
  const auto behind_table = head.layout.rule - static_cast<std::int32_t>(rule_names().size());
  if (behind_table == 0) return adafactor_step(in, head);
  if (behind_table == 1) return muon_step(in, head);
  if (behind_table == 2) return apollo_step(in, head);
  if (behind_table == 3) return galore_step(in, head);
  const std::int64_t n = head.layout.count;
  const bool has_powers = head.layout.has_powers != 0, has_first = head.layout.has_first != 0;
  StepSettings settings;
  settings.rule = static_cast<Rule>(head.layout.rule);
  settings.hyper.assign(head.numbers(), head.numbers() + head.hyper.size - 1);
  settings.scale = head.scale;
  settings.step = std::int64_t{*head.step} + 1;
  settings.seed = head.layout.seed;
  const View& ratio = *head.ratio;
  require(ratio.size == 1 || ratio.size >= 2 * n, kOp, ": ratio must hold 1 or ", 2 * n, " numbers, got ", ratio.size);
  const auto* ratios = static_cast<const float*>(ratio.data);
  settings.ratio.assign(ratios, ratios + (ratio.size == 1 ? 1 : n));
  float* powers[2] = {};
  GroupNumbers lr = head.lr;
  std::optional<Averaging> averaging;
  if (settings.rule == Rule::schedule_free_sgd || settings.rule == Rule::schedule_free_adamw) {
    averaging.emplace(in, settings.hyper, settings.step, lr.values);
  }
  const bool has_momentum = settings.rule == Rule::sgd || settings.rule == Rule::momentum;
  require_hyper(facts(settings.rule), settings.hyper);
  require(!has_powers || settings.hyper.size() >= 2, kOp, ": layout must have no powers for rule ",
          facts(settings.rule).name, ", got some");
  if (averaging) {
    require(has_powers, kOp, ": layout must have powers for rule ", facts(settings.rule).name, ", got none");
  } else if (has_powers && has_momentum) {
    settings.hyper[0] = static_cast<double>(in.number("momentum"));
  } else {
    for (int i = 0; has_powers && i < 2; ++i) powers[i] = in.written<float>("powers", DType::f32);
  }

  for (std::int64_t i = 0; i < n; ++i) {
    const TensorNumbers& tensor = head.layout.tensors[static_cast<std::size_t>(i)];
    settings.lr.push_back(lr.of(kOp, tensor));
    settings.decay.push_back((ratio.size == 1 ? 1 : ratios[n + i]) * head.decay.of(kOp, tensor));
    settings.centralize.push_back(tensor.is_centralized != 0);
  }
  const Views weights = in.list("weights", n), masters = head.masters(in), grads = in.list("grads", n);
  std::vector<Views> state;
  for (std::int64_t k = 0; k < head.layout.states; ++k) state.push_back(in.list("state", n));
  const std::vector<Views> scales = scales_of(in, state);
  Views first;
  for (std::int64_t i = 0; has_first && i < n; ++i) {
    first.push_back(in.at_least("first", DType::f32, 0));
    require_writable(kOp, {"first", i}, first.back());
    settings.first.push_back(first.back().size > 0 && *static_cast<const float*>(first.back().data) != 0);
  }
  Views indices;  // of all tensors; a scalar for those that come whole
  bool some_rows = false;
  for (const TensorNumbers& tensor : head.layout.tensors) {
    indices.emplace_back();
    indices.back().ndim = 0;
    if (tensor.special != 0) indices.back() = in.take("indices", DType::i32, -1);
    some_rows = some_rows || indices.back().ndim > 0;
  }
  in.require_end();
  require_shapes(kOp, grads, weights, indices);

  if (!some_rows)
    optimizer_step(cpu_context(), settings, weights, masters, grads, state, scales);
  else
    step_rows(settings, weights, masters, grads, state, scales, indices);
  for (std::size_t i = 0; i < first.size(); ++i) {
    if (settings.first[i]) std::fill_n(static_cast<float*>(first[i].data), first[i].size, 0.0F);
  }
  *head.step = static_cast<std::int32_t>(settings.step);
  if (averaging) averaging->count();
  for (std::size_t i = 0; powers[1] != nullptr && i < 2; ++i) {
    *powers[i] = beta_power(settings.hyper[i], settings.step);
  }
}

BOOST_EXT_GRAPH_OP(lars) {
  const StepLayout layout(in);
  const std::int32_t groups = layout.groups;
  const std::int64_t n = layout.count;
  const View& hyper = in.at_least("hyper", DType::f64, 1);
  const double own_scale = static_cast<const double*>(hyper.data)[hyper.size - 1];
  const auto& [coefficient, eps, clip] = *in.data<const double[3]>("lars", DType::f64, 3);
  std::vector<float> rates, decays;
  std::vector<unsigned char> applied;
  const auto* apply = in.data<std::int32_t>("apply", DType::i32, n);
  const Number scale{inverse_scale(in.number("scale"), own_scale), {}};
  const GroupNumbers lr(in, "lr", groups, 1), decay(in, "weight_decay", groups, inverse_scale(own_scale));
  for (const TensorNumbers& tensor : layout.tensors) {
    rates.push_back(lr.of(in.op(), tensor));
    decays.push_back(decay.of(in.op(), tensor));
    applied.push_back(apply[applied.size()] != 0);
  }
  // A cell that was narrowed has more room than it needs.
  View ratio = in.at_least("ratios", DType::f32, 2 * n);
  ratio.set_shape(1, [n](int) { return n; });
  View decay_ratio = ratio;
  decay_ratio.data = static_cast<float*>(ratio.data) + n;
  const Views weights = in.list("weights", n), grads = in.list("grads", n);
  lars(cpu_context(), weights, grads, coefficient, eps, clip != 0, scale, rates, decays, applied, ratio, decay_ratio);
}

}  // namespace boost_ext
