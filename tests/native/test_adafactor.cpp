// adafactor_step on exactly sized arrays: storage types, shapes around the blocks and tiles, masters, centralized.
#include <vector>

#include "harness.h"
#include "ops/adafactor_step.h"

namespace native {

void test_adafactor_step();

namespace {

using namespace boost_ext;

const Shape kShapes[] = {{},        {0},        {17},       {70001},   {5, 7},         {2, 0},      {1, 1},
                         {33, 130}, {70, 1100}, {3, 20003}, {9000, 8}, {40, 30, 3, 3}, {2, 90, 100}};
constexpr DType kFloats[] = {DType::f32, DType::f16, DType::bf16};

std::int64_t size_of(const Shape& shape, std::size_t without) {
  std::int64_t size = 1;
  for (std::size_t d = 0; d < shape.size(); ++d) size *= d == without ? 1 : shape[d];
  return size;
}

// One tensor of each shape, with everything that a step takes.
struct Model {
  std::vector<Array> weights, masters, grads, rows, columns, squares, moments;

  Model(DType of_weight, DType of_gradient, DType kept, bool mastered) {
    std::mt19937 random(7);
    for (const Shape& shape : kShapes) {
      const std::size_t axes = shape.size();
      const std::int64_t size = size_of(shape, axes);
      const bool factored = axes >= 2 && size > 0;
      const auto add = [&](std::vector<Array>& list, DType dtype, std::int64_t n, double value) {
        list.emplace_back(dtype, n);
        list.back().fill(value);
      };
      add(weights, of_weight, size, 0);
      weights.back().fill(random);
      add(grads, of_gradient, size, 0);
      grads.back().fill(random);
      add(rows, DType::f32, factored ? size_of(shape, axes - 1) : 0, 0.25);
      add(columns, DType::f32, factored ? size_of(shape, axes - 2) : 0, 0.25);
      add(squares, kept, axes < 2 ? size : 0, 0.25);
      add(moments, kept, size, 0.25);
      if (!mastered) continue;
      masters.emplace_back(DType::f32, of_weight == DType::f32 ? 0 : size);
      for (std::int64_t i = 0; i < masters.back().size(); ++i) masters.back().set(i, weights.back().get(i));
    }
  }
  void step(const Context& context, const AdaFactorSettings& settings) {
    adafactor_step(context, settings,
                   {shaped(weights, kShapes), shaped(masters, kShapes), shaped(grads, kShapes), shaped(rows, kShapes),
                    shaped(columns, kShapes), shaped(squares, kShapes), shaped(moments, kShapes)});
  }
};

void test_steps(int threads) {
  AdaFactorSettings settings;
  settings.beta1 = 0.5;
  settings.step = 2;
  settings.scale = 0.5;
  settings.decay = {0.25F};
  Context context;
  context.threads = threads;
  for (DType of_weight : kFloats) {
    for (DType of_gradient : kFloats) {
      const bool mastered = of_gradient != DType::f32;
      settings.centralize = {static_cast<unsigned char>(of_gradient == DType::bf16)};
      const DType kept = of_weight == DType::bf16 ? DType::f16 : DType::f32;
      Model model(of_weight, of_gradient, kept, mastered), alone(of_weight, of_gradient, kept, mastered);
      model.step(context, settings);
      alone.step({}, settings);
      bool right = true;
      for (std::size_t t = 0; t < model.weights.size(); ++t) {
        right = right && model.weights[t].same_bits(alone.weights[t]) && model.moments[t].same_bits(alone.moments[t]);
        right = right && model.rows[t].same_bits(alone.rows[t]) && model.columns[t].same_bits(alone.columns[t]);
        for (std::int64_t i = 0; i < model.weights[t].size(); ++i) {
          right = right && std::isfinite(model.weights[t].get(i));
        }
      }
      CHECK(right);
    }
  }
}

// R = C = 1 and t so large that they stay: V is 1, U = u, and its RMS of 2 is clipped to 1.
void test_one_step() {
  Array w(DType::f32, 6, 2), g(DType::f32, 6, 2), rows(DType::f32, 2), columns(DType::f32, 3);
  w.fill(1.0), g.fill(2.0), rows.fill(4.0), columns.fill(4.0);
  View weight = w.view(), grad = g.view();
  for (View* v : {&weight, &grad}) v->set_shape(2, [](int d) { return std::int64_t{d == 0 ? 2 : 3}; });
  AdaFactorSettings settings;
  settings.relative_step = settings.scale_parameter = false;
  settings.clip_threshold = 0.5;
  settings.lr = {0.25F};
  adafactor_step({}, settings, {{weight}, {}, {grad}, {rows.view()}, {columns.view()}, {View()}, {}});
  for (std::int64_t i = 0; i < 6; ++i) CHECK(std::abs(w.get(i) - (1 - 0.25 * 0.5)) < 1e-6);
  for (std::int64_t i = 0; i < 2; ++i) CHECK(rows.get(i) == 4);
  CHECK_THROWS(adafactor_step({}, settings, {{weight}, {}, {grad}, {columns.view()}, {columns.view()}, {View()}, {}}),
               std::invalid_argument, "adafactor_step: rows[0] must have 2 elements, got 3");
  CHECK_THROWS(adafactor_step({}, settings, {{weight}, {}, {weight}, {rows.view()}, {columns.view()}, {View()}, {}}),
               std::invalid_argument,
               "adafactor_step: params[0] is written and must not overlap other arguments, but it overlaps grads[0]");
}

}  // namespace

void test_adafactor_step() {
  for (const std::string& isa : cpu_features()) {
    set_isa(isa);
    for (int threads : {1, 3}) test_steps(threads);
    test_one_step();
  }
}

}  // namespace native
