#include "ops/optimizer_step.h"

#include <algorithm>
#include <cmath>
#include <numeric>

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

// The settings, one value a tensor, in the order and type that kernels read.
struct Spread {
  std::vector<float> lr, decay, ratio, scale, l2;
  std::vector<unsigned char> centralize, first;

  Spread(const StepSettings& s, const Views& weights) {
    const std::size_t n = weights.size();
    const char* op = facts(s.rule).op;
    require_finite(op, "inv_scale", s.scale);
    const bool corrected = s.rule == Rule::adam || s.rule == Rule::lamb;
    require(s.step >= (corrected ? 1 : 0), op, ": step must be >= 1, got ", s.step);
    require_hyper(facts(s.rule), s.hyper);
    lr = spread(op, "lr", s.lr, n, 0.0F);
    decay = spread(op, "weight_decay", s.decay, n, 0.0F);
    ratio = spread(op, "ratio", s.ratio, n, 1.0F);
    centralize = spread<unsigned char>(op, "centralize", s.centralize, n, 0);
    first = spread<unsigned char>(op, "first", s.first, n, 0);
    require(!s.lr.empty(), op, ": lr must hold one value, or one for each parameter, got none");
    require_non_negative(op, "lr", lr);
    require_non_negative(op, "weight_decay", decay);
    scale.resize(n);
    l2.resize(n);
    for (std::size_t i = 0; i < n; ++i) {
      require(std::isfinite(ratio[i]), op, ": ratio must be finite, got ", ratio[i]);
      scale[i] = static_cast<float>(s.scale * ratio[i]);
      require(std::isfinite(scale[i]), op, ": inv_scale * ratio must be finite in float32, got ", s.scale * ratio[i]);
      l2[i] = facts(s.rule).decoupled ? 0.0F : decay[i];
      centralize[i] = centralize[i] && weights[i].ndim >= 2;
    }
  }
};

// `narrow`: whether this call may have state of 8 and 16 bits.
void require_dtype_of_state(const RuleFacts& rule, bool narrow, const Name& name, const View& v) {
  if (v.dtype == DType::f32 || (narrow && (v.dtype == DType::bf16 || v.dtype == DType::u8))) return;
  throw TypeError(
      text(rule.op, ": ", name, " must be float32", narrow ? ", bfloat16 or uint8" : "", ", got ", dtype_name(v)));
}

constexpr const char* kScales[kMaxStates] = {"scales[0]", "scales[1]", "scales[2]"};

// One scale a block of uint8 state, nothing beside other state.
void require_scales(const RuleFacts& rule, const std::vector<Views>& state, const std::vector<Views>& scales,
                    Overlap& overlap) {
  require(scales.empty() || scales.size() == state.size(), rule.op, ": scales must hold one list for each of the ",
          state.size(), " states, got ", scales.size());
  for (std::size_t k = 0; k < state.size(); ++k) {
    if (!scales.empty()) require_same_count(rule.op, {kScales[k], scales[k]}, {rule.state[k], state[k]});
    for (std::size_t i = 0; i < state[k].size(); ++i) {
      const Name name(kScales[k], static_cast<std::int64_t>(i));
      const View& v = state[k][i];
      if (v.dtype != DType::u8) {
        require(scales.empty() || scales[k][i].size == 0, rule.op, ": ", name, " must be empty beside a ",
                dtype_name(v), " state, got ", scales.empty() ? 0 : scales[k][i].size, " elements");
        continue;
      }
      require(!scales.empty(), rule.op, ": scales must be given with uint8 state, got none");
      require_dtype(rule.op, name, scales[k][i], DType::f32);
      require_size(rule.op, name, scales[k][i], (v.size + kStateBlock - 1) / kStateBlock);
      require_writable(rule.op, name, scales[k][i]);
      overlap.writes(name, scales[k][i]);
    }
  }
}

// What a step writes. In a list, or with `alone` one tensor of its own name.
void require_written(const StepSettings& settings, bool alone, const Views& weights, const Views& masters,
                     const std::vector<Views>& state, const std::vector<Views>& scales, Overlap& overlap) {
  const RuleFacts& rule = facts(settings.rule);
  const List w{"params", weights};
  const auto named = [alone](const char* arg, std::size_t i) {
    return Name(arg, alone ? -1 : static_cast<std::int64_t>(i));
  };
  const auto require_state = [&](const Name& name, const View& v, const View& weight) {
    require_size(rule.op, name, v, weight.size);
    require_writable(rule.op, name, v);
    overlap.writes(name, v);
  };
  for (std::size_t i = 0; i < weights.size(); ++i) {
    require_writable(rule.op, named("params", i), weights[i]);
    overlap.writes(named("params", i), weights[i]);
  }
  const auto count = static_cast<int>(state.size());
  require(count >= rule.min_states && count <= rule.max_states, rule.op, ": rule ", rule.name, " must get ",
          rule.min_states, rule.min_states == rule.max_states ? "" : text(" to ", rule.max_states),
          " lists of state, got ", count);
  if (settings.rule == Rule::sgd && count == 0 && !settings.hyper.empty()) {
    require(settings.hyper[0] == 0, rule.op, ": accum must be given with momentum ", settings.hyper[0], ", got none");
  }
  for (std::size_t k = 0; k < state.size(); ++k) {
    require_same_count(rule.op, {rule.state[k], state[k]}, w);
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const View& v = state[k][i];
      require_dtype_of_state(rule, rule.narrow_state && count < kMaxStates, named(rule.state[k], i), v);
      require(v.dtype == DType::f32 || settings.step > 0, rule.op, ": step must be given with ", dtype_name(v),
              " state, for its random bits, got none");
      require_state(named(rule.state[k], i), v, weights[i]);
    }
  }
  require_scales(rule, state, scales, overlap);
  if (!masters.empty()) require_same_count(rule.op, {"masters", masters}, w);
  for (std::size_t i = 0; i < masters.size(); ++i) {
    const Name name = named("masters", i);
    if (weights[i].dtype != DType::f32) {
      require_dtype(rule.op, name, masters[i], DType::f32);
      require_state(name, masters[i], weights[i]);
      continue;
    }
    require(masters[i].size == 0, rule.op, ": ", name, " must be empty beside a float32 parameter, got ",
            masters[i].size, " elements");
  }
  overlap.check();
}

// The finalizer of splitmix64 (Steele et al. 2014).
std::uint64_t mixed(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}
std::uint64_t key_of(std::uint64_t key, std::int64_t part) {
  return mixed(key + 0x9e3779b97f4a7c15u * (static_cast<std::uint64_t>(part) + 1));
}

// For each tensor the key of its random bits in this step.
std::vector<std::uint64_t> keys_of(const StepSettings& s, std::size_t count) {
  const std::uint64_t step = key_of(key_of(0, s.seed), s.step);
  std::vector<std::uint64_t> keys;
  for (std::size_t i = 0; i < count; ++i) {
    keys.push_back(key_of(step, s.numbers.empty() ? static_cast<std::int64_t>(i) : s.numbers[i]));
  }
  return keys;
}

// The call of the kernel, once the arguments are checked.
void run(Device device, const Context& context, const StepSettings& settings, const Views& weights,
         const Views& masters, const Views& grads, const std::vector<Views>& state, const std::vector<Views>& scales,
         const std::vector<std::uint64_t>& keys) {
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
                     scales.data(),
                     keys.data(),
                     spread.scale.data(),
                     spread.l2.data(),
                     spread.decay.data(),
                     spread.lr.data(),
                     spread.centralize.data(),
                     spread.first.data(),
                     {}};
  std::copy(settings.hyper.begin(), settings.hyper.end(), step.settings.hyper);  // as many as require_hyper has allowed
  step.settings.step = settings.step;
  if (device == Device::ascend) return BOOST_EXT_ASCEND(optimizer_step)(context, settings.rule, step);
  BOOST_EXT_CPU(optimizer_step)(context, settings.rule, step);
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

void optimizer_step(const Context& context, const StepSettings& settings, const Views& weights, const Views& masters,
                    const Views& grads, const std::vector<Views>& state, const std::vector<Views>& scales) {
  const char* op = facts(settings.rule).op;
  const Device device = require_any_device(op, {&weights, &grads, &masters});
  for (const Views& views : state) require_any_device(op, {&weights, &views});
  for (const Views& views : scales) require_any_device(op, {&weights, &views});
  if (device == Device::cuda) require_cpu(op, {&weights});
  const List w{"params", weights};
  const List g{"grads", grads};
  require_floats(op, w);
  require_same_count(op, g, w);
  require_floats(op, g);
  require_same_sizes(op, g, w);
  Overlap overlap(op);
  overlap.reads(g);
  require_written(settings, false, weights, masters, state, scales, overlap);
  run(device, context, settings, weights, masters, grads, state, scales, keys_of(settings, weights.size()));
}

void optimizer_step_rows(const Context& context, const StepSettings& settings, const View& weights, const View& master,
                         const View& indices, const View& values, const Views& state) {
  const char* op = facts(settings.rule).op;
  require_cpu(op, {&state}, {weights, indices, values, master});
  require(settings.rule != Rule::lamb, op,
          ": indices must be left out, since norms go over the whole tensor, got rows");
  require_float(op, "params", weights);
  require_float(op, "grads", values);
  require_dtype(op, "indices", indices, DType::i32);
  require(weights.ndim >= 1, op, ": params must have rows, got a scalar");
  const std::int64_t width = weights.rows > 0 ? weights.size / weights.rows : 0;
  require_size(op, "grads", values, indices.size * width);
  const auto* at = static_cast<const std::int32_t*>(indices.data);
  for (std::int64_t i = 0; i < indices.size; ++i) {
    require(at[i] >= 0 && at[i] < weights.rows, op, ": indices[", i, "] must be in [0, ", weights.rows, "), got ",
            at[i]);
  }
  std::vector<Views> lists;
  for (const View& v : state) {
    require(v.dtype != DType::u8, op, ": indices must be left out with uint8 state, got rows");
    lists.push_back({v});
  }
  const Views masters = master.data ? Views{master} : Views{};
  Overlap overlap(op);
  overlap.reads("indices", indices);
  overlap.reads("grads", values);
  require_written(settings, true, {weights}, masters, lists, {}, overlap);
  const Spread checked(settings, {weights});  // as one tensor, not as many as there are rows
  if (indices.size == 0 || width == 0) return;

  std::vector<std::int64_t> order(static_cast<std::size_t>(indices.size)), first;
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [at](std::int64_t a, std::int64_t b) { return at[a] < at[b]; });
  const std::uint64_t key = keys_of(settings, 1)[0];
  std::vector<std::uint64_t> keys;
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
    keys.push_back(key_of(key, index));
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
  run(Device::cpu, context, settings, rows, master_rows, grads, state_rows, {}, keys);
}

}  // namespace boost_ext
