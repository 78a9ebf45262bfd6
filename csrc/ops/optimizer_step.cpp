#include "ops/optimizer_step.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace boost_ext {
namespace {

struct Part {
  const char* arg;
  const View& view;
};

// The settings as this device can know them: what is in arrays, read on the CPU, and elsewhere harmless numbers in
// their place.
StepSettings known(const StepSettings& given, Device device, std::size_t count, Overlap& overlap) {
  StepSettings s = given;
  const char* op = facts(s.rule).op;
  for (const Part& part : {Part{"inv_scale", s.at.scale}, Part{"step", s.at.step}, Part{"skip", s.at.skip},
                           Part{"lr", s.at.lr}, Part{"weight_decay", s.at.decay}, Part{"ratio", s.at.ratio}}) {
    const View& v = part.view;
    if (v.data == nullptr) continue;
    require_dtype(op, part.arg, v, &v == &s.at.step ? DType::i32 : DType::f32);
    const bool of_all = &v == &s.at.scale || &v == &s.at.step || &v == &s.at.skip;
    if (of_all) require_size(op, part.arg, v, 1);
    require(v.size == 1 || v.size == static_cast<std::int64_t>(count), op, ": ", part.arg,
            " must hold one value, or one for each of the ", count, " parameters, got ", v.size);
    overlap.reads(part.arg, v);
  }
  const auto read = [device](const View& v, float instead) {
    const auto* from = static_cast<const float*>(v.data);
    return device == Device::cpu ? std::vector<float>(from, from + v.size) : std::vector<float>{instead};
  };
  if (s.at.lr.data) s.lr = read(s.at.lr, 0);
  if (s.at.decay.data) s.decay = read(s.at.decay, 0);
  if (s.at.ratio.data) s.ratio = read(s.at.ratio, 1);
  if (s.at.scale.data) s.scale = static_cast<double>(read(s.at.scale, 1)[0]);
  if (s.at.step.data) s.step = device == Device::cpu ? *static_cast<const std::int32_t*>(s.at.step.data) : 1;
  require(s.at.step.data == nullptr || s.step >= 1, op, ": step must be >= 1, got ", s.step);
  return s;
}

bool skipped(const StepArrays& at, Device device) {
  return device == Device::cpu && at.skip.data != nullptr && *static_cast<const float*>(at.skip.data) != 0;
}

// Where all that is listed lives.
Device device_of(const StepSettings& s, std::vector<Tensors> lists, Devices devices) {
  const char* op = facts(s.rule).op;
  const Views at{s.at.scale, s.at.step, s.at.lr, s.at.decay, s.at.ratio, s.at.skip};
  lists.emplace_back(at);
  const Device device = require_one_device(op, lists, devices);
  require(device != Device::ascend || total_size(at) == 0, op,
          ": lr, weight_decay, ratio, inv_scale and step must be numbers on Ascend, and skip left out, got an array");
  return device;
}

// The settings, one value a tensor, in the order and type that kernels read.
struct Spread {
  std::vector<float> lr, decay, ratio, scale, l2;
  std::vector<unsigned char> centralize, first;

  Spread(const StepSettings& s, const Views& weights) {
    const std::size_t n = weights.size();
    const char* op = facts(s.rule).op;
    require_finite(op, "inv_scale", s.scale);
    require(s.step >= (facts(s.rule).corrected ? 1 : 0), op, ": step must be >= 1, got ", s.step);
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
      require(!centralize[i] || weights[i].layout == 0, op, ": params[", i,
              "] must be C-contiguous to be centralized, got another order of elements");
    }
  }
};

// `narrow`: whether this call may have state of 8 and 16 bits.
void require_dtype_of_state(const RuleFacts& rule, bool narrow, const Name& name, const View& v) {
  if (v.dtype == DType::f32 || (narrow && (v.dtype == DType::bf16 || v.dtype == DType::u8))) return;
  throw TypeError(
      text(rule.op, ": ", name, " must be float32", narrow ? ", bfloat16 or uint8" : "", ", got ", dtype_name(v)));
}

void require_dtype_of_master(const RuleFacts& rule, const Name& name, const View& v, const View& weight) {
  const bool split = weight.dtype == DType::bf16;
  if (v.dtype == DType::f32 || (split && is_residual(v))) return;
  throw TypeError(text(rule.op, ": ", name, " must be float32",
                       split            ? ", int16 or int8"
                       : is_residual(v) ? " beside a float16 parameter"
                                        : "",
                       ", got ", dtype_name(v)));
}

constexpr const char* kScales[kMaxStates] = {"scales[0]", "scales[1]", "scales[2]", "scales[3]"};

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
  const auto require_state = [&](const Name& name, const View& v, std::size_t i) {
    const View& weight = weights[i];
    require_size(rule.op, name, v, weight.size);
    require_layout(rule.op, name, v, named("params", i), weight);
    require_writable(rule.op, name, v);
    overlap.writes(name, v);
  };
  for (std::size_t i = 0; i < weights.size(); ++i) {
    require_writable(rule.op, named("params", i), weights[i]);
    overlap.writes(named("params", i), weights[i]);
  }
  const auto count = static_cast<int>(state.size());
  require(count == rule.min_states || rule.min_states != rule.max_states, rule.op, ": rule ", rule.name, " must get ",
          rule.min_states, " lists of state, got ", count);
  require(count >= rule.min_states && count <= rule.max_states, rule.op, ": rule ", rule.name, " must get ",
          rule.min_states, " to ", rule.max_states, " lists of state, got ", count);
  if (settings.rule == Rule::sgd && count == 0 && !settings.hyper.empty()) {
    require(settings.hyper[0] == 0, rule.op, ": accum must be given with momentum ", settings.hyper[0], ", got none");
  }
  for (std::size_t k = 0; k < state.size(); ++k) {
    require_same_count(rule.op, {rule.state[k], state[k]}, w);
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const View& v = state[k][i];
      require_dtype_of_state(rule, rule.narrow_state && count == rule.min_states, named(rule.state[k], i), v);
      require(v.dtype == DType::f32 || settings.step > 0, rule.op, ": step must be given with ", dtype_name(v),
              " state, for its random bits, got none");
      require_state(named(rule.state[k], i), v, i);
    }
  }
  require_scales(rule, state, scales, overlap);
  if (!masters.empty()) require_same_count(rule.op, {"masters", masters}, w);
  for (std::size_t i = 0; i < masters.size(); ++i) {
    const Name name = named("masters", i);
    if (weights[i].dtype != DType::f32) {
      require_dtype_of_master(rule, name, masters[i], weights[i]);
      require_state(name, masters[i], i);
      continue;
    }
    require(masters[i].size == 0, rule.op, ": ", name, " must be empty beside a float32 parameter, got ",
            masters[i].size, " elements");
  }
  overlap.check();
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

// What the kernels get, once the arguments are checked.
struct Call {
  Spread spread;
  Views wide, narrow;
  OptimizerStep step;

  Call(const StepSettings& settings, const Views& weights, const Views& masters, const Views& grads,
       const std::vector<Views>& state, const std::vector<Views>& scales, const std::vector<std::uint64_t>& keys)
      : spread(settings, weights),
        wide(weights),
        narrow(weights.size()),
        step{wide,
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
             {},
             facts(settings.rule).decoupled,
             settings.scale,
             spread.ratio.data(),
             settings.seed,
             &settings.numbers,
             &settings.at} {
    for (std::size_t i = 0; i < weights.size(); ++i) {
      narrow[i].size = 0;
      if (masters.empty() || masters[i].size == 0) continue;
      if (is_residual(masters[i])) {
        narrow[i] = masters[i];
        continue;
      }
      narrow[i] = weights[i];
      wide[i].data = masters[i].data;
      wide[i].dtype = DType::f32;
    }
    // As many as require_hyper has allowed.
    std::copy(settings.hyper.begin(), settings.hyper.end(), step.settings.hyper);
    step.settings.step = settings.step;
  }
};

}  // namespace

void optimizer_step(const Context& context, const StepSettings& given, const Views& weights, const Views& masters,
                    const Views& grads, const std::vector<Views>& state, const std::vector<Views>& scales) {
  const char* op = facts(given.rule).op;
  std::vector<Tensors> all{weights, grads, masters};
  all.insert(all.end(), state.begin(), state.end());
  all.insert(all.end(), scales.begin(), scales.end());
  const Device device = device_of(given, std::move(all), Devices::all);
  const List w{"params", weights};
  const List g{"grads", grads};
  require_floats(op, w);
  require_same_count(op, g, w);
  require_floats(op, g);
  require_same_sizes(op, g, w);
  Overlap overlap(op);
  overlap.reads(g);
  const StepSettings settings = known(given, device, weights.size(), overlap);
  require_written(settings, false, weights, masters, state, scales, overlap);
  if (skipped(settings.at, device)) return;
  const std::vector<std::uint64_t> keys = keys_of(settings, weights.size());
  const Call call(settings, weights, masters, grads, state, scales, keys);
  if (device == Device::cuda) return BOOST_EXT_CUDA(optimizer_step)(context, settings.rule, call.step);
  if (device == Device::ascend) return BOOST_EXT_ASCEND(optimizer_step)(context, settings.rule, call.step);
  BOOST_EXT_CPU(optimizer_step)(context, settings.rule, call.step);
}

void optimizer_step_rows(const Context& context, const StepSettings& given, const View& weights, const View& master,
                         const View& indices, const View& values, const Views& state) {
  const char* op = facts(given.rule).op;
  const Views others{weights, indices, values, master};
  const Device device = device_of(given, {others, state}, Devices::cpu_and_cuda);
  require(given.rule != Rule::lamb, op, ": indices must be left out, since norms go over the whole tensor, got rows");
  require_float(op, "params", weights);
  require_float(op, "grads", values);
  require_dtype(op, "indices", indices, DType::i32);
  require(weights.ndim >= 1, op, ": params must have rows, got a scalar");
  const std::int64_t width = weights.rows > 0 ? weights.size / weights.rows : 0;
  require_size(op, "grads", values, indices.size * width);
  require(device == Device::cpu || indices.size <= std::numeric_limits<std::int32_t>::max(), op,
          ": indices must hold fewer than 2**31 rows on a device, got ", indices.size);
  const auto* at = static_cast<const std::int32_t*>(indices.data);
  const std::int64_t readable = device == Device::cpu ? indices.size : 0;
  for (std::int64_t i = 0; i < readable; ++i) {
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
  const StepSettings settings = known(given, device, 1, overlap);
  require_written(settings, true, {weights}, masters, lists, {}, overlap);
  if (skipped(settings.at, device)) return;
  const Views whole{weights}, no_grads(1);
  const Call one(settings, whole, masters, no_grads, lists, {}, {});  // as one tensor, not as many as there are rows
  if (indices.size == 0 || width == 0) return;
  if (device == Device::cuda) {
    return BOOST_EXT_CUDA(optimizer_step_rows)(context, settings.rule, one.step, indices, values);
  }

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
  const Call call(settings, rows, master_rows, grads, state_rows, {}, keys);
  BOOST_EXT_CPU(optimizer_step)(context, settings.rule, call.step);
}

}  // namespace boost_ext
