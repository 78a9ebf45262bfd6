#include "doors/packed_step.h"

#include <algorithm>
#include <cmath>

#include "ops/optimizer_step.h"

namespace boost_ext {
namespace {

constexpr const char* kOp = "optimizer_step";
constexpr std::int64_t kHeader = 6;

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

}  // namespace

void packed_step(const Views& arrays) {
  Reader in(arrays);
  const View& layout = in.take("layout", DType::i32, -1);
  const auto* header = static_cast<const std::int32_t*>(layout.data);
  require(layout.size >= kHeader && layout.size == kHeader + 3 * header[5], kOp, ": layout must fit its tensors, got ",
          layout.size, " numbers");
  StepSettings settings;
  settings.rule = static_cast<Rule>(header[0]);
  const std::int64_t groups = header[1], states = header[2], n = header[5];
  const bool has_powers = header[3] != 0, has_first = header[4] != 0;

  const View& hyper = in.take("hyper", DType::f64, -1);
  const auto* numbers_of_rule = static_cast<const double*>(hyper.data);
  const double own_scale = numbers_of_rule[hyper.size - 1];
  settings.hyper.assign(numbers_of_rule, numbers_of_rule + hyper.size - 1);
  if (*in.data<bool>("skip", DType::b8, 1)) return;
  const double scale = *in.data<float>("scale", DType::f32, 1);
  settings.scale = *in.data<float>("clip", DType::f32, 1) / (scale * own_scale);
  auto* step = in.data<std::int32_t>("step", DType::i32, 1);
  settings.step = std::int64_t{*step} + 1;
  const View& ratio = in.take("ratio", DType::f32, -1);
  settings.ratio.assign(static_cast<const float*>(ratio.data), static_cast<const float*>(ratio.data) + ratio.size);
  const std::vector<float> lr = numbers(in, "lr", groups, 1);
  const std::vector<float> decay = numbers(in, "weight_decay", groups, 1 / own_scale);
  float* powers[2] = {};
  for (int i = 0; has_powers && i < 2; ++i) powers[i] = in.data<float>("powers", DType::f32, 1);

  std::int64_t halves = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int32_t* tensor = header + kHeader + 3 * i;
    const auto group = static_cast<std::size_t>(tensor[0]);
    require(group < lr.size(), kOp, ": layout must name one of ", groups, " groups, got ", tensor[0]);
    settings.lr.push_back(lr[group]);
    settings.decay.push_back(decay[group]);
    settings.centralize.push_back(tensor[1] != 0);
    halves += tensor[2] != 0;
  }
  const Views weights = in.list("weights", n), some_masters = in.list("masters", halves);
  Views masters;
  for (std::int64_t i = 0, next = 0; halves > 0 && i < n; ++i) {
    masters.emplace_back();
    masters.back().size = 0;
    if (header[kHeader + 3 * i + 2]) masters.back() = some_masters[static_cast<std::size_t>(next++)];
  }
  const Views grads = in.list("grads", n);
  std::vector<Views> state;
  for (std::int64_t k = 0; k < states; ++k) state.push_back(in.list("state", n));
  std::vector<float*> first;
  for (std::int64_t i = 0; has_first && i < n; ++i) {
    first.push_back(in.data<float>("first", DType::f32, 1));
    settings.first.push_back(*first.back() != 0);
  }
  require(in.done(), kOp, ": must get as many arrays as the layout says, got ", arrays.size());

  optimizer_step(cpu_context(), settings, weights, masters, grads, state);
  for (float* f : first) *f = 0;
  *step = static_cast<std::int32_t>(settings.step);
  for (std::size_t i = 0; has_powers && i < 2; ++i) {
    *powers[i] = static_cast<float>(std::pow(settings.hyper[i], static_cast<double>(settings.step)));
  }
}

}  // namespace boost_ext
