#include "ops/optimizer_step.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

namespace boost_ext {
namespace {

constexpr RuleFacts kRules[] = {
    {"sgd", "sgd_step", 0, 1, false, {"momentum", "dampening", "nesterov"}},
    {"momentum", "momentum_step", 1, 1, false, {"momentum", "use_nesterov"}},
    {"adam", "adam_step", 2, 3, false, {"beta1", "beta2", "eps", "use_nesterov"}},
    {"adam_weight_decay", "adam_weight_decay_step", 2, 2, true, {"beta1", "beta2", "eps"}},
    {"lamb", "lamb_step", 2, 2, true, {"beta1", "beta2", "eps"}},
    {"adagrad", "adagrad_step", 1, 1, false, {"update_slots"}},
    {"proximal_adagrad", "proximal_adagrad_step", 1, 1, false, {"l1", "l2"}},
    {"rmsprop", "rmsprop_step", 2, 2, false, {"decay", "momentum", "epsilon"}},
    {"centered_rmsprop", "centered_rmsprop_step", 3, 3, false, {"decay", "momentum", "epsilon"}},
    {"ftrl", "ftrl_step", 2, 2, false, {"l1", "l2", "lr_power"}},
};

int hyper_count(const RuleFacts& rule) {
  int n = 0;
  while (n < kMaxHyper && rule.hyper[n]) ++n;
  return n;
}

// One value for all tensors, or one for each.
template <class T>
std::vector<T> spread(const char* op, const char* arg, const std::vector<T>& values, std::size_t count, T missing) {
  if (values.empty()) return std::vector<T>(count, missing);
  if (values.size() == 1) return std::vector<T>(count, values[0]);
  require(values.size() == count, op, ": ", arg, " must hold one value, or one for each of the ", count,
          " weights, got ", values.size());
  return values;
}

void require_non_negative(const char* op, const char* arg, const std::vector<float>& values) {
  for (float x : values) require(x >= 0 && std::isfinite(x), op, ": ", arg, " must be finite and >= 0, got ", x);
}

void require_hyper(const RuleFacts& rule, const std::vector<double>& hyper) {
  const auto n = static_cast<std::size_t>(hyper_count(rule));
  require(hyper.size() == n, rule.op, ": rule ", rule.name, " must get ", n, " hyperparameters, got ", hyper.size());
  for (std::size_t i = 0; i < n; ++i) {
    const std::string key = rule.hyper[i];
    const double x = hyper[i];
    require(std::isfinite(x), rule.op, ": ", key, " must be finite, got ", x);
    if (key == "beta1" || key == "beta2") require(x > 0 && x < 1, rule.op, ": ", key, " must be in (0, 1), got ", x);
    if (key == "eps" || key == "epsilon") require(x > 0, rule.op, ": ", key, " must be > 0, got ", x);
    if (key == "lr_power") require(x <= 0, rule.op, ": lr_power must be <= 0, got ", x);
    if (key == "l1" || key == "l2" || key == "momentum" || key == "dampening" || key == "decay") {
      require(x >= 0, rule.op, ": ", key, " must be >= 0, got ", x);
    }
  }
}

// The settings, one value a tensor, in the order and type that kernels read.
struct Spread {
  std::vector<float> lr, decay, ratio, scale, l2;
  std::vector<unsigned char> centralize, first;

  Spread(const StepSettings& s, const Views& weights) {
    const std::size_t n = weights.size();
    const char* op = facts(s.rule).op;
    require_finite(op, "scale", s.scale);
    require(s.step >= 1, op, ": step must be >= 1, got ", s.step);
    require_hyper(facts(s.rule), s.hyper);
    lr = spread(op, "lr", s.lr, n, 0.0F);
    decay = spread(op, "weight_decay", s.decay, n, 0.0F);
    ratio = spread(op, "ratio", s.ratio, n, 1.0F);
    centralize = spread<unsigned char>(op, "centralize", s.centralize, n, 0);
    first = spread<unsigned char>(op, "first", s.first, n, 0);
    require(!s.lr.empty(), op, ": lr must hold one value, or one for each weight, got none");
    require_non_negative(op, "lr", lr);
    require_non_negative(op, "weight_decay", decay);
    scale.resize(n);
    l2.resize(n);
    for (std::size_t i = 0; i < n; ++i) {
      require(std::isfinite(ratio[i]), op, ": ratio must be finite, got ", ratio[i]);
      scale[i] = static_cast<float>(s.scale * ratio[i]);
      l2[i] = facts(s.rule).decoupled ? 0.0F : decay[i];
      centralize[i] = centralize[i] && weights[i].ndim >= 2;
    }
  }
};

void require_arguments(const RuleFacts& rule, const Views& weights, const Views& masters, const Views& grads,
                       const std::vector<Views>& state, std::initializer_list<const View*> read) {
  const List w{"weights", weights};
  const List g{"grads", grads};
  require_floats(rule.op, w);
  require_floats(rule.op, g);
  require_same_sizes(rule.op, g, w);
  require_writables(rule.op, w);
  const auto count = static_cast<int>(state.size());
  require(count >= rule.min_states && count <= rule.max_states, rule.op, ": rule ", rule.name, " must get ",
          rule.min_states, rule.min_states == rule.max_states ? "" : text(" to ", rule.max_states),
          " lists of state, got ", count);
  Overlap overlap(rule.op);
  overlap.writes(w);
  if (read.size() == 0) overlap.reads(g);
  for (const View* v : read) overlap.reads(v == *read.begin() ? "indices" : "values", *v);
  for (const Views& views : state) {
    const List s{"state", views};
    require_same_sizes(rule.op, s, w);
    require_writables(rule.op, s);
    for (std::size_t i = 0; i < views.size(); ++i) {
      require_dtype(rule.op, {"state", static_cast<std::int64_t>(i)}, views[i], DType::f32);
    }
    overlap.writes(s);
  }
  if (!masters.empty()) {
    const List m{"masters", masters};
    require_same_count(rule.op, m, w);
    for (std::size_t i = 0; i < masters.size(); ++i) {
      const Name name("masters", static_cast<std::int64_t>(i));
      if (weights[i].dtype == DType::f32) {
        require(masters[i].size == 0, rule.op, ": ", name, " must be empty beside a float32 weight");
        continue;
      }
      require_dtype(rule.op, name, masters[i], DType::f32);
      require_size(rule.op, name, masters[i], weights[i].size);
      require_writable(rule.op, name, masters[i]);
      overlap.writes(name, masters[i]);
    }
  }
  overlap.check();
}

// The call of the kernel, once the arguments are checked.
void run(const Context& context, const StepSettings& settings, const Views& weights, const Views& masters,
         const Views& grads, const std::vector<Views>& state) {
  const Spread spread(settings, weights);
  Views wide = weights, narrow(weights.size());
  for (std::size_t i = 0; i < weights.size(); ++i) {
    narrow[i].size = 0;
    if (masters.empty() || masters[i].size == 0) continue;
    narrow[i] = weights[i];
    wide[i].data = masters[i].data;
    wide[i].dtype = DType::f32;
  }
  OptimizerStep step{wide,
                     narrow,
                     grads,
                     state.data(),
                     static_cast<int>(state.size()),
                     spread.scale.data(),
                     spread.l2.data(),
                     spread.decay.data(),
                     spread.lr.data(),
                     spread.centralize.data(),
                     spread.first.data(),
                     settings.hyper.data(),
                     settings.step};
  BOOST_EXT_CPU(optimizer_step)(context, settings.rule, step);
}

}  // namespace

const RuleFacts& facts(Rule rule) { return kRules[static_cast<std::size_t>(rule)]; }

Rule find_rule(const std::string& name) {
  std::string known;
  for (std::size_t i = 0; i < std::size(kRules); ++i) {
    if (name == kRules[i].name) return static_cast<Rule>(i);
    known += text(i ? ", " : "", kRules[i].name);
  }
  throw std::invalid_argument(text("optimizer_step: rule must be one of ", known, ", got ", name));
}

void optimizer_step(const Context& context, const StepSettings& settings, const Views& weights, const Views& masters,
                    const Views& grads, const std::vector<Views>& state) {
  const char* op = facts(settings.rule).op;
  require_backend(op, {&weights, &grads});
  for (const Views& views : state) require_backend(op, {&weights, &views});
  if (!masters.empty()) require_backend(op, {&weights, &masters});
  require_arguments(facts(settings.rule), weights, masters, grads, state, {});
  run(context, settings, weights, masters, grads, state);
}
void optimizer_step_rows(const Context& context, const StepSettings& settings, const View& weights, const View& master,
                         const View& indices, const View& values, const Views& state) {
  const char* op = facts(settings.rule).op;
  require_backend(op, {&state}, {weights, indices, values});
  require(settings.rule != Rule::lamb, op, ": rule lamb must get the whole gradient, got rows");
  require_dtype(op, "indices", indices, DType::i32);
  require_float(op, "values", values);
  require(weights.ndim >= 1, op, ": weights must have rows, got a scalar");
  const std::int64_t width = weights.rows > 0 ? weights.size / weights.rows : 0;
  require_size(op, "values", values, indices.size * width);
  const auto* at = static_cast<const std::int32_t*>(indices.data);
  for (std::int64_t i = 0; i < indices.size; ++i) {
    require(at[i] >= 0 && at[i] < weights.rows, op, ": indices[", i, "] must be in [0, ", weights.rows, "), got ",
            at[i]);
  }
  std::vector<Views> lists;
  for (const View& v : state) lists.push_back({v});
  const Views masters = master.data ? Views{master} : Views{};
  require_arguments(facts(settings.rule), {weights}, masters, {weights}, lists, {&indices, &values});
  if (indices.size == 0 || width == 0) {
    const Spread checked(settings, {weights});
    return;
  }

  std::vector<std::int64_t> order(static_cast<std::size_t>(indices.size)), first;
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [at](std::int64_t a, std::int64_t b) { return at[a] < at[b]; });
  Views rows, master_rows, grads;
  std::vector<Views> state_rows(state.size());
  const auto row = [width](View v, std::int64_t index) {
    v.data = static_cast<char*>(v.data) + index * width * item_size(v.dtype);
    v.size = width;
    v.rows = 1;
    return v;
  };
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::int64_t index = at[order[i]];
    if (i > 0 && at[order[i - 1]] == index) continue;
    first.push_back(static_cast<std::int64_t>(i));
    rows.push_back(row(weights, index));
    if (master.data) master_rows.push_back(row(master, index));
    for (std::size_t k = 0; k < state.size(); ++k) state_rows[k].push_back(row(state[k], index));
  }
  first.push_back(indices.size);
  std::vector<float> sums(rows.size() * static_cast<std::size_t>(width));
  BOOST_EXT_CPU(sum_rows)
  (context, values, order.data(), first.data(), static_cast<std::int64_t>(rows.size()), sums.data());
  for (std::size_t r = 0; r < rows.size(); ++r) {
    View g;
    g.data = sums.data() + r * static_cast<std::size_t>(width);
    g.size = width;
    g.rows = 1;
    g.ndim = weights.ndim;
    grads.push_back(g);
  }
  run(context, settings, rows, master_rows, grads, state_rows);
}

}  // namespace boost_ext
