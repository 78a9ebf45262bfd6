#include "doors/packed_step.h"

#include <cmath>

#include "ops/lars.h"
#include "ops/optimizer_step.h"

namespace boost_ext {
namespace {

constexpr const char* kOp = "optimizer_step";
constexpr std::int64_t kHeader = 7, kPerTensor = 4;

class Reader {
 public:
  explicit Reader(const Views& arrays) : arrays_(arrays) {}
  const View& take(const char* arg, DType dtype, std::int64_t size) {
    const View& v = take(arg);
    require_dtype(kOp, arg, v, dtype);
    if (size >= 0) require_size(kOp, arg, v, size);
    return v;
  }
  const View& take(const char* arg) {
    require(next_ < arrays_.size(), kOp, ": ", arg, " is missing, got ", arrays_.size(), " arrays");
    return arrays_[next_++];
  }
  template <class T> T* data(const char* arg, DType dtype, std::int64_t size) {
    return static_cast<T*>(take(arg, dtype, size).data);
  }
  Views list(const char* arg, std::int64_t count) {
    Views views;
    views.reserve(static_cast<std::size_t>(count));
    for (std::int64_t i = 0; i < count; ++i) views.push_back(take(arg));
    return views;
  }
  const std::int32_t* layout() {
    const View& v = take("layout", DType::i32, -1);
    const auto* header = static_cast<const std::int32_t*>(v.data);
    require(v.size >= kHeader && v.size == kHeader + kPerTensor * header[5], kOp, ": layout must fit its tensors, got ",
            v.size, " numbers");
    return header;
  }
  bool done() const { return next_ == arrays_.size(); }

 private:
  const Views& arrays_;
  std::size_t next_ = 0;
};

std::vector<float> numbers(Reader& in, const char* arg, std::int64_t count, double factor) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < count; ++i) {
    values.push_back(static_cast<float>(factor * *in.data<float>(arg, DType::f32, 1)));
  }
  return values;
}

// What a number of each group is for tensor i.
float of_group(const std::vector<float>& groups, const std::int32_t* header, std::int64_t i) {
  const auto group = static_cast<std::size_t>(header[kHeader + kPerTensor * i]);
  require(group < groups.size(), kOp, ": layout must name one of ", groups.size(), " groups, got ", group);
  return groups[group];
}

// The settings of some of the tensors.
StepSettings chosen(const StepSettings& all, const std::vector<std::size_t>& which) {
  StepSettings some = all;
  some.lr.clear(), some.decay.clear(), some.centralize.clear(), some.first.clear(), some.numbers.clear();
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

// A call in which some gradients hold rows only: these one by one, the others together.
void step_rows(const StepSettings& settings, const Views& weights, const Views& masters, const Views& grads,
               const std::vector<Views>& state, const std::vector<Views>& scales, const Views& indices) {
  std::vector<std::size_t> whole;
  Views dense_weights, dense_masters, dense_grads;
  std::vector<Views> dense_state(state.size()), dense_scales(scales.size());
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (indices[i].data == nullptr) {
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

void packed_step(const Views& arrays) {
  Reader in(arrays);
  const std::int32_t* header = in.layout();
  StepSettings settings;
  settings.rule = static_cast<Rule>(header[0]);
  const std::int64_t groups = header[1], states = header[2], n = header[5];
  settings.seed = header[6];
  const bool has_powers = header[3] != 0, has_first = header[4] != 0;

  const View& hyper = in.take("hyper", DType::f64, -1);
  const auto* numbers_of_rule = static_cast<const double*>(hyper.data);
  const double own_scale = numbers_of_rule[hyper.size - 1];
  settings.hyper.assign(numbers_of_rule, numbers_of_rule + hyper.size - 1);
  if (*in.data<bool>("skip", DType::b8, 1)) return;
  const double scale = *in.data<float>("scale", DType::f32, 1);
  settings.scale = 1 / (scale * own_scale);
  auto* step = in.data<std::int32_t>("step", DType::i32, 1);
  settings.step = std::int64_t{*step} + 1;
  const View& ratio = in.take("ratio", DType::f32, -1);
  require(ratio.size == 1 || ratio.size == 2 * n, kOp, ": ratio must hold 1 or ", 2 * n, " numbers, got ", ratio.size);
  const auto* ratios = static_cast<const float*>(ratio.data);
  settings.ratio.assign(ratios, ratios + (ratio.size == 1 ? 1 : n));
  const std::vector<float> lr = numbers(in, "lr", groups, 1);
  const std::vector<float> decay = numbers(in, "weight_decay", groups, 1 / own_scale);
  float* powers[2] = {};
  for (int i = 0; has_powers && i < 2; ++i) powers[i] = in.data<float>("powers", DType::f32, 1);

  std::int64_t halves = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int32_t* tensor = header + kHeader + kPerTensor * i;
    settings.lr.push_back(of_group(lr, header, i));
    settings.decay.push_back((ratio.size == 1 ? 1 : ratios[n + i]) * of_group(decay, header, i));
    settings.centralize.push_back(tensor[1] != 0);
    halves += tensor[2] != 0;
  }
  const Views weights = in.list("weights", n), some_masters = in.list("masters", halves);
  Views masters;
  for (std::int64_t i = 0, next = 0; halves > 0 && i < n; ++i) {
    masters.emplace_back();
    masters.back().size = 0;
    if (header[kHeader + kPerTensor * i + 2]) masters.back() = some_masters[static_cast<std::size_t>(next++)];
  }
  const Views grads = in.list("grads", n);
  std::vector<Views> state;
  for (std::int64_t k = 0; k < states; ++k) state.push_back(in.list("state", n));
  const std::vector<Views> scales = scales_of(in, state);
  std::vector<float*> first;
  for (std::int64_t i = 0; has_first && i < n; ++i) {
    first.push_back(in.data<float>("first", DType::f32, 1));
    settings.first.push_back(*first.back() != 0);
  }
  Views indices;  // of all tensors; without data for those that come whole
  bool some_rows = false;
  for (std::int64_t i = 0; i < n; ++i) {
    indices.emplace_back();
    if (!header[kHeader + kPerTensor * i + 3]) continue;
    indices.back() = in.take("indices", DType::i32, -1);
    some_rows = true;
  }
  require(in.done(), kOp, ": must get as many arrays as the layout says, got ", arrays.size());

  if (!some_rows)
    optimizer_step(cpu_context(), settings, weights, masters, grads, state, scales);
  else
    step_rows(settings, weights, masters, grads, state, scales, indices);
  for (float* f : first) *f = 0;
  *step = static_cast<std::int32_t>(settings.step);
  for (std::size_t i = 0; has_powers && i < 2; ++i) {
    *powers[i] = static_cast<float>(std::pow(settings.hyper[i], static_cast<double>(settings.step)));
  }
}

void packed_lars(const Views& arrays) {
  Reader in(arrays);
  const std::int32_t* header = in.layout();
  const std::int64_t groups = header[1], n = header[5];
  const View& hyper = in.take("hyper", DType::f64, -1);
  const double own_scale = static_cast<const double*>(hyper.data)[hyper.size - 1];
  const auto* numbers_of_lars = in.data<double>("lars", DType::f64, 3);
  LarsSettings settings;
  settings.coefficient = numbers_of_lars[0];
  settings.eps = numbers_of_lars[1];
  settings.clip = numbers_of_lars[2] != 0;
  const auto* apply = in.data<std::int32_t>("apply", DType::i32, n);
  settings.scale = 1 / (own_scale * *in.data<float>("scale", DType::f32, 1));
  const std::vector<float> lr = numbers(in, "lr", groups, 1);
  const std::vector<float> decay = numbers(in, "weight_decay", groups, 1 / own_scale);
  for (std::int64_t i = 0; i < n; ++i) {
    settings.lr.push_back(of_group(lr, header, i));
    settings.decay.push_back(of_group(decay, header, i));
    settings.apply.push_back(apply[i] != 0);
  }
  const View& ratios = in.take("ratios");
  const Views weights = in.list("weights", n), grads = in.list("grads", n);
  lars(cpu_context(), settings, weights, grads, ratios);
}

}  // namespace boost_ext
