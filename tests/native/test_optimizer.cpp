// optimizer_step and optimizer_step_rows on exactly sized arrays: every rule, storage type, masters, centralized rows.
// What the rules compute is tested in Python; here a few of them, and that a step stays within its arrays.
#include <vector>

#include "harness.h"
#include "ops/optimizer_step.h"

namespace native {

void test_optimizer_step();

namespace {

using namespace boost_ext;

constexpr std::int64_t kSizes[] = {0, 1, 15, 16, 17, 65, 4095, 4096, 4097, 40001};
constexpr std::uint16_t kWidths[] = {1, 16, 33, 5000};
constexpr DType kFloats[] = {DType::f32, DType::f16, DType::bf16};

StepSettings settings_of(Rule rule) {
  StepSettings s;
  s.rule = rule;
  s.lr = {0.125F};
  s.step = 2;
  switch (rule) {
    case Rule::sgd:
      s.hyper = {0.5, 0.5, 1};
      break;
    case Rule::momentum:
      s.hyper = {0.5, 0, 0};
      break;
    case Rule::adam:
      s.hyper = {0.5, 0.75, 1e-6, 1, 0};
      break;
    case Rule::adam_weight_decay:
    case Rule::adamw:
      s.hyper = {0.5, 0.75, 1e-6, 1};
      break;
    case Rule::lamb:
      s.hyper = {0.5, 0.75, 1e-6};
      break;
    case Rule::lion:
      s.hyper = {0.5, 0.75, 0};
      break;
    case Rule::nadamw:
      s.hyper = {0.5, 0.75, 1e-6, 0.125, 0};
      break;
    case Rule::ademamix:
      s.hyper = {0.5, 0.75, 1e-6, 0.875, 2, 4, 3, 0};
      break;
    case Rule::adan:
      s.hyper = {0.5, 0.75, 0.875, 1e-6, 0};
      break;
    case Rule::schedule_free_sgd:
      s.hyper = {0.25, 0.5};
      break;
    case Rule::schedule_free_adamw:
      s.hyper = {0.25, 0.5, 0.75, 1e-6};
      break;
    case Rule::adagrad:
      s.hyper = {1};
      break;
    case Rule::proximal_adagrad:
      s.hyper = {0.125, 0.5};
      break;
    case Rule::rmsprop:
    case Rule::centered_rmsprop:
      s.hyper = {0.5, 0.5, 1e-6};
      break;
    case Rule::ftrl:
      s.hyper = {0.125, 0.5, -0.25};
      break;
  }
  return s;
}

constexpr DType kNone = DType::other;  // of masters

// Two tensors, the second one a matrix, with everything that a step takes.
struct Model {
  std::vector<Array> weights, masters, grads;
  std::vector<std::vector<Array>> state;

  Model(DType of_weight, DType of_gradient, std::int64_t n, int states, DType of_master, unsigned seed) {
    std::mt19937 random(seed);
    state.resize(static_cast<std::size_t>(states));
    const auto add = [&](std::vector<Array>& list, DType dtype, std::int64_t size, std::int64_t rows) {
      list.emplace_back(dtype, size, rows);
      list.back().fill(random);
    };
    for (std::int64_t rows : {std::int64_t{-1}, std::int64_t{3}}) {
      const std::int64_t size = rows < 0 ? n : rows * n;
      add(weights, of_weight, size, rows);
      add(grads, of_gradient, size, rows);
      for (std::vector<Array>& list : state) {
        list.emplace_back(DType::f32, size, rows);
        list.back().fill(0.25);
      }
      if (of_master == kNone) continue;
      masters.emplace_back(of_master, of_weight == DType::f32 ? 0 : size, rows);
      for (std::int64_t i = 0; i < masters.back().size(); ++i) {
        masters.back().set(i, of_master == DType::f32 ? weights.back().get(i) : 0);
      }
    }
  }
  static Views views(const std::vector<Array>& list) {
    Views v;
    for (const Array& a : list) v.push_back(a.view());
    return v;
  }
  void step(const Context& context, const StepSettings& settings) {
    std::vector<Views> lists;
    for (const std::vector<Array>& list : state) lists.push_back(views(list));
    optimizer_step(context, settings, views(weights), views(masters), views(grads), lists);
  }
};

double lower_half(double master) {
  const auto narrow = static_cast<float>(master);
  std::int16_t halves[2];
  std::memcpy(halves, &narrow, sizeof halves);
  return halves[0];
}

void test_rule(const Context& context, Rule rule, int states, std::int64_t n) {
  StepSettings settings = settings_of(rule);
  settings.lr = {0.125F, 0.25F};
  settings.decay = {0.5F};
  settings.scale = 0.5;
  settings.centralize = {1};
  settings.first = {1, 0};
  if (states == 0) settings.hyper[0] = 0;
  unsigned seed = static_cast<unsigned>(n);
  for (DType of_weight : kFloats) {
    for (DType of_master : {kNone, DType::f32, DType::i16, DType::i8}) {
      const bool split = of_master == DType::i16 || of_master == DType::i8;
      if (split && of_weight != DType::bf16) continue;
      const DType of_gradient = kFloats[++seed % 3];  // another one for the next size: each is converted for itself
      Model model(of_weight, of_gradient, n, states, of_master, seed);
      Model alone(of_weight, of_gradient, n, states, of_master, seed);
      Model wide(of_weight, of_gradient, n, states, DType::f32, seed);
      model.step(context, settings);
      alone.step({}, settings);
      if (split) wide.step({}, settings);
      bool right = true;
      for (std::size_t t = 0; t < 2; ++t) {
        right = right && model.weights[t].same_bits(alone.weights[t]);
        for (std::size_t k = 0; k < model.state.size(); ++k) {
          right = right && model.state[k][t].same_bits(alone.state[k][t]);
        }
        for (std::int64_t i = 0; i < model.weights[t].size(); ++i) {
          right = right && std::isfinite(model.weights[t].get(i));
          if (of_master == kNone || of_weight == DType::f32) continue;
          const double master = (split ? wide : model).masters[t].get(i);
          right = right && close(model.weights[t], i, master, 0);
          if (of_master == DType::i16) right = right && model.masters[t].get(i) == lower_half(master);
        }
      }
      CHECK(right);
    }
  }
}

// Multiples of powers of two: exact, but for the mean of a row and storage.
void test_momentum(const Context& context, DType dtype, std::int64_t n) {
  Model model(dtype, dtype, n, 1, kNone, 7);
  Model before(dtype, dtype, n, 1, kNone, 7);
  StepSettings settings = settings_of(Rule::momentum);
  settings.centralize = {1};
  model.step(context, settings);
  bool right = true;
  for (std::size_t t = 0; t < 2; ++t) {
    for (std::int64_t r = 0; r < (t == 0 ? 1 : 3); ++r) {
      double mean = 0;
      for (std::int64_t i = r * n; t == 1 && i < (r + 1) * n; ++i) mean += before.grads[t].get(i) / double(n);
      for (std::int64_t i = r * n; i < (r + 1) * n; ++i) {
        const double a = 0.125 + before.grads[t].get(i) - mean;
        right = right && close(model.state[0][t], i, a, 0.1);
        right = right && close(model.weights[t], i, before.weights[t].get(i) - a / 8, 0.1);
      }
    }
  }
  CHECK(right);
}

// Rows as a dense step makes them, the others untouched.
void test_rows(const Context& context, Rule rule, int states, DType dtype, std::uint16_t columns) {
  const std::int64_t width = columns;  // never negative, which GCC fears of an int64
  constexpr std::int64_t kRows = 7;
  const std::int32_t listed[] = {5, 0, 5, 3};
  std::mt19937 random(11);
  Array weights(dtype, kRows * width, kRows), dense(dtype, kRows * width, kRows);
  Array indices(DType::i32, 4), values(dtype, 4 * width, 4), grads(DType::f32, kRows * width, kRows);
  Array master(DType::f32, dtype == DType::f32 ? 0 : kRows * width, kRows);
  Array dense_master(DType::f32, master.size(), kRows);
  weights.fill(random);
  dense.copy(weights);
  values.fill(random);
  grads.fill(0);
  for (std::int64_t i = 0; i < master.size(); ++i) master.set(i, weights.get(i));
  dense_master.copy(master);
  for (std::int64_t k = 0; k < 4; ++k) {
    indices.set(k, listed[k]);
    for (std::int64_t i = 0; i < width; ++i) {
      const std::int64_t at = listed[k] * width + i;
      grads.set(at, grads.get(at) + values.get(k * width + i));
    }
  }
  Array before(dtype, kRows * width, kRows);
  before.copy(weights);
  std::vector<Array> state, dense_state;
  for (int k = 0; k < states; ++k) {
    for (std::vector<Array>* list : {&state, &dense_state}) {
      list->emplace_back(DType::f32, kRows * width, kRows);
      list->back().fill(0.25);
    }
  }
  StepSettings settings = settings_of(rule);
  if (states == 0) settings.hyper[0] = 0;
  std::vector<Views> lists;
  for (const Array& a : dense_state) lists.push_back({a.view()});
  optimizer_step(context, settings, {dense.view()}, {dense_master.view()}, {grads.view()}, lists);
  const View of_master = master.size() > 0 ? master.view() : View();
  optimizer_step_rows(context, settings, weights.view(), of_master, indices.view(), values.view(), Model::views(state));
  bool right = true;
  for (std::int64_t r = 0; r < kRows; ++r) {
    const bool stepped = r == 0 || r == 3 || r == 5;
    for (std::int64_t i = r * width; i < (r + 1) * width; ++i) {
      right = right && weights.get(i) == (stepped ? dense : before).get(i);
      for (std::size_t k = 0; k < state.size(); ++k) {
        right = right && state[k].get(i) == (stepped ? dense_state[k].get(i) : 0.25);
      }
      if (stepped && master.size() > 0) right = right && master.get(i) == dense_master.get(i);
    }
  }
  CHECK(right);
}

// State of 8 and 16 bits: within its arrays, near the float32 step, and the same bits on one thread.
void test_narrow_state(const Context& context, Rule rule, DType dtype, std::int64_t n) {
  const int states = facts(rule).min_states;
  StepSettings settings = settings_of(rule);
  settings.centralize = {1};
  Model wide(DType::f32, DType::f32, n, states, kNone, 5);
  struct Narrow {
    Model model;
    std::vector<std::vector<Array>> state, scales;
    Narrow(DType dtype, std::int64_t n, int states) : model(DType::f32, DType::f32, n, 0, kNone, 5) {
      for (int k = 0; k < states; ++k) {
        state.emplace_back();
        scales.emplace_back();
        for (const Array& w : model.weights) {
          const bool coded = dtype == DType::u8;
          state.back().emplace_back(dtype, w.size());
          state.back().back().fill(0);
          scales.back().emplace_back(DType::f32, coded ? (w.size() + kStateBlock - 1) / kStateBlock : 0);
          scales.back().back().fill(0);
        }
      }
    }
    void step(const Context& context, const StepSettings& settings) {
      std::vector<Views> lists, beside;
      for (const auto& list : state) lists.push_back(Model::views(list));
      for (const auto& list : scales) beside.push_back(Model::views(list));
      optimizer_step(context, settings, Model::views(model.weights), {}, Model::views(model.grads), lists, beside);
    }
  };
  Narrow narrow(dtype, n, states), alone(dtype, n, states);
  for (std::vector<Array>& list : wide.state) {
    for (Array& a : list) a.fill(0);
  }
  bool right = true;
  for (int t = 1; t < 4; ++t) {
    settings.step = t;
    wide.step(context, settings);
    narrow.step(context, settings);
    alone.step({}, settings);
  }
  for (std::size_t t = 0; t < 2; ++t) {
    right = right && narrow.model.weights[t].same_bits(alone.model.weights[t]);
    for (std::size_t k = 0; k < narrow.state.size(); ++k) {
      right = right && narrow.state[k][t].same_bits(alone.state[k][t]);
      right = right && narrow.scales[k][t].same_bits(alone.scales[k][t]);
    }
    for (std::int64_t i = 0; i < wide.weights[t].size(); ++i) {
      const double off = narrow.model.weights[t].get(i) - wide.weights[t].get(i);
      right = right && std::fabs(off) <= 0.25;
    }
  }
  CHECK(right);
}

void test_refusals() {
  Array w(DType::f32, 8), g(DType::f32, 7), a(DType::f32, 8), i(DType::i32, 1);
  const StepSettings settings = settings_of(Rule::momentum);
  CHECK_THROWS(optimizer_step({}, settings, {w.view()}, {}, {g.view()}, {{a.view()}}), std::invalid_argument,
               "momentum_step: grads[0] must have 8 elements, got 7");
  CHECK_THROWS(optimizer_step({}, settings, {w.view()}, {}, {w.view()}, {{a.view()}}), std::invalid_argument,
               "momentum_step: params[0] is written and must not overlap other arguments, but it overlaps grads[0]");
  CHECK_THROWS(optimizer_step({}, settings, {w.view()}, {}, {a.view()}, {}), std::invalid_argument,
               "momentum_step: rule momentum must get 1 lists of state, got 0");
  i.fill(8);
  Array value(DType::f32, 1);
  CHECK_THROWS(optimizer_step_rows({}, settings, w.view(), {}, i.view(), value.view(), {a.view()}),
               std::invalid_argument, "momentum_step: indices[0] must be in [0, 8), got 8");
}

}  // namespace

void test_optimizer_step() {
  std::vector<Rule> rules;
  for (const std::string& name : rule_names()) rules.push_back(find_rule(name));
  for (const std::string& isa : cpu_features()) {
    set_isa(isa);
    Context context;
    context.threads = 3;  // most of them compare with one thread
    for (Rule rule : rules) {
      for (int states = facts(rule).min_states; states <= facts(rule).max_states; ++states) {
        for (std::int64_t n : kSizes) {
          if (n < 40001 || rule == Rule::lamb || rule == Rule::adam) test_rule(context, rule, states, n);
        }
        if (rule == Rule::lamb) continue;
        for (DType dtype : kFloats) {
          for (std::uint16_t width : kWidths) test_rows(context, rule, states, dtype, width);
        }
      }
    }
    for (DType dtype : kFloats) {
      for (std::int64_t n : kSizes) test_momentum(context, dtype, n);
    }
    for (Rule rule : rules) {
      if (!facts(rule).narrow_state) continue;
      for (DType dtype : {DType::bf16, DType::u8}) {
        for (std::int64_t n : {0, 1, 17, 255, 256, 257, 1025, 5000}) test_narrow_state(context, rule, dtype, n);
      }
    }
  }
  test_refusals();
}

}  // namespace native
