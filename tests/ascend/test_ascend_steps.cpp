// Steps of the optimizers on the emulator: the same bits as the CPU kernels', whose operations they repeat.
#include "device.h"
#include "ops/optimizer_step.h"
#include "tiling.h"

namespace native {

namespace {

using namespace boost_ext;

constexpr std::int64_t kStepSizes[] = {1, 7, 63, 65, 2047, 2049, 2559, 2561, 3071, 3073, 7000};

struct Case {
  Rule rule;
  std::int32_t ours;
  std::vector<double> hyper;
};
const Case kCases[] = {
    {Rule::momentum, ascend::kMomentum, {0.9, 0, 0}},
    {Rule::momentum, ascend::kMomentum, {0.9, 1, 0}},
    {Rule::adam, ascend::kAdam, {0.9, 0.999, 1e-8, 0, 0}},
    {Rule::adam, ascend::kAdam, {0.8, 0.99, 1e-3, 1, 0}},
    {Rule::adam_weight_decay, ascend::kAdamWeightDecay, {0.9, 0.999, 1e-6, 0}},
};

void set_any(Array& a, std::mt19937& random, bool positive = false) {
  for (std::int64_t i = 0; i < a.size(); ++i) {
    const double x = static_cast<double>(random() % 2001) / 1000 - 1;  // no subnormal halves, which Array cannot set
    a.set(i, positive ? std::fabs(x) : x);
  }
}

// The same bits, but for those of nan.
bool same(const Array& a, const Array& b) {
  for (std::int64_t i = 0; i < a.size(); ++i) {
    const double x = a.get(i), y = b.get(i);
    if (std::isnan(x) ? !std::isnan(y) : x != y || std::signbit(x) != std::signbit(y)) return false;
  }
  return true;
}

void test_step(const Case& c, DType dtype, bool masters, std::int64_t n, std::mt19937& random) {
  const bool adaptive = c.rule != Rule::momentum;
  Array w(dtype, n), g(dtype, n), master(DType::f32, n), m(DType::f32, n), v(DType::f32, n);
  Array cpu_w(dtype, n), cpu_master(DType::f32, n), cpu_m(DType::f32, n), cpu_v(DType::f32, n);
  set_any(w, random);
  set_any(g, random);
  set_any(m, random);
  set_any(v, random, true);
  for (std::int64_t i = 0; i < n; ++i) master.set(i, w.get(i) + (i % 3 == 0 ? 0.25 : 0));  // some were set by others
  if (n == 65) {  // gradients, weights and state that are not finite, and a weight that a step makes so
    g.set(3, INFINITY), g.set(4, NAN), g.set(5, -INFINITY);
    w.set(6, NAN), w.set(7, INFINITY), m.set(8, NAN), v.set(9, INFINITY), master.set(10, NAN);
    w.set(11, dtype == DType::f16 ? 65504 : 3e38), g.set(11, dtype == DType::f16 ? -65504 : -3e38), m.set(11, -3e38);
    v.set(11, 0);
  }
  cpu_w.copy(w);
  cpu_master.copy(master);
  cpu_m.copy(m);
  cpu_v.copy(v);
  const Device d0(w), d1(g), d2(master), d3(m), d4(v);

  StepSettings settings;
  settings.rule = c.rule;
  settings.hyper = c.hyper;
  settings.scale = 0.125;
  settings.lr = {0.05F};
  settings.decay = {0.01F};
  const bool decoupled = c.rule == Rule::adam_weight_decay;
  for (settings.step = 1; settings.step <= 2; ++settings.step) {
    const int rc = ASCEND(optimizer_step, dtype)(c.ours, w.data(), masters ? master.data() : nullptr, g.data(),
                                                 m.data(), adaptive ? v.data() : nullptr, 0.125F, decoupled ? 0 : 0.01F,
                                                 0.05F, 0.01F, c.hyper.data(), settings.step, n, nullptr);
    CHECK(rc == 0);
    std::vector<Views> state = {{cpu_m.view()}};
    if (adaptive) state.push_back({cpu_v.view()});
    optimizer_step(cpu_context(), settings, {cpu_w.view()}, masters ? Views{cpu_master.view()} : Views{}, {g.view()},
                   state);
    CHECK(same(w, cpu_w) && same(m, cpu_m) && same(v, cpu_v) && same(master, cpu_master));
  }
}

}  // namespace

void test_ascend_steps() {
  std::mt19937 random(11);
  std::int32_t turn = 0;
  for (const std::int64_t n : kStepSizes) {
    for (const DType dtype : kStorage) {
      for (const Case& c : kCases) {
        set_cores(1 + turn++ % 4);
        test_step(c, dtype, false, n, random);
        if (dtype != DType::f32) test_step(c, dtype, true, n, random);
      }
    }
  }
  const double hyper[] = {0.9, 0, 0, 0};
  Array w(DType::f32, 1);
  CHECK(boost_ext_optimizer_step_f32(3, w.data(), nullptr, w.data(), w.data(), w.data(), 1, 0, 0, 0, hyper, 1, 1,
                                     nullptr) == 1);
  CHECK(boost_ext_optimizer_step_f32(0, w.data(), w.data(), w.data(), w.data(), w.data(), 1, 0, 0, 0, hyper, 1, 1,
                                     nullptr) == 1);
  CHECK(boost_ext_optimizer_step_f32(0, nullptr, nullptr, nullptr, nullptr, nullptr, 1, 0, 0, 0, nullptr, 1, 0,
                                     nullptr) == 0);
}

}  // namespace native
