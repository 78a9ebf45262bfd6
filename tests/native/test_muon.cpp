// muon_step on exactly sized arrays: storage types, shapes around blocks and tiles, masters, centralized, AdamW beside.
#include <vector>

#include "harness.h"
#include "ops/muon_step.h"

namespace native {

void test_muon_step();

namespace {

using namespace boost_ext;

const Shape kShapes[] = {{},        {0},       {17},      {5000},       {5, 7},     {2, 0},   {1, 1},
                         {33, 130}, {130, 33}, {40, 200}, {9, 5, 3, 3}, {2, 9, 10}, {3, 4100}};
constexpr DType kFloats[] = {DType::f32, DType::f16, DType::bf16};

// One tensor of each shape, with everything that a step takes.
struct Model {
  std::vector<Array> weights, masters, grads, first, second;

  Model(DType of_weight, DType of_gradient, bool mastered) {
    std::mt19937 random(7);
    for (const Shape& shape : kShapes) {
      std::int64_t size = 1;
      for (const std::int64_t n : shape) size *= n;
      const auto add = [&](std::vector<Array>& list, DType dtype, std::int64_t n) {
        list.emplace_back(dtype, n);
        list.back().fill(random);
      };
      add(weights, of_weight, size);
      add(grads, of_gradient, size);
      add(first, DType::f32, size);
      second.emplace_back(DType::f32, shape.size() < 2 ? size : 0);
      second.back().fill(0.25);
      if (!mastered) continue;
      masters.emplace_back(DType::f32, of_weight == DType::f32 ? 0 : size);
      for (std::int64_t i = 0; i < masters.back().size(); ++i) masters.back().set(i, weights.back().get(i));
    }
  }
  void step(const Context& context, const MuonSettings& settings) {
    muon_step(context, settings,
              {shaped(weights, kShapes), shaped(masters, kShapes), shaped(grads, kShapes), shaped(first, kShapes),
               shaped(second, kShapes)});
  }
};

MuonSettings usual() {
  MuonSettings settings;
  settings.step.rule = Rule::adamw;
  settings.step.hyper = {0.9, 0.999, 1e-8};
  settings.step.lr = {0.25F};
  return settings;
}

void test_steps(const Context& context) {
  MuonSettings settings = usual();
  settings.step.step = 2;
  settings.step.scale = 0.5;
  settings.step.decay = {0.25F};
  Context of_one = context;
  of_one.threads = 1;
  for (DType of_weight : kFloats) {
    for (DType of_gradient : kFloats) {
      const bool mastered = of_gradient != DType::f32;
      settings.step.centralize = {static_cast<unsigned char>(of_gradient == DType::bf16)};
      settings.nesterov = settings.match_rms = of_weight == DType::f16;
      Model model(of_weight, of_gradient, mastered), alone(of_weight, of_gradient, mastered);
      model.step(context, settings);
      alone.step(of_one, settings);
      bool right = true;
      for (std::size_t t = 0; t < model.weights.size(); ++t) {
        right = right && model.weights[t].same_bits(alone.weights[t]) && model.first[t].same_bits(alone.first[t]);
        for (std::int64_t i = 0; i < model.weights[t].size(); ++i) {
          right = right && std::isfinite(model.weights[t].get(i));
        }
      }
      CHECK(right);
    }
  }
}

// One number is a matrix: without iterations its direction is its sign.
void test_one_step() {
  Array w(DType::f32, 1), g(DType::f32, 1), m(DType::f32, 1);
  w.fill(1.0), g.fill(-2.0), m.fill(0.0);
  const View weight = shaped(w, {1, 1}), grad = shaped(g, {1, 1});
  MuonSettings settings = usual();
  settings.iterations = 0;
  settings.step.decay = {0.5F};
  const auto step = [&](const View& of) { muon_step({}, settings, {{weight}, {}, {of}, {m.view()}, {View()}}); };
  step(grad);
  CHECK(std::abs(w.get(0) - (1 - 0.25 * 0.5 + 0.25)) < 1e-5);
  CHECK(std::abs(m.get(0) + 0.1) < 1e-6);
  settings.iterations = -1;
  CHECK_THROWS(step(grad), std::invalid_argument, "muon_step: ns_steps must be >= 0, got -1");
  settings.iterations = 5;
  CHECK_THROWS(step(weight), std::invalid_argument,
               "muon_step: params[0] is written and must not overlap other arguments, but it overlaps grads[0]");
}

}  // namespace

void test_muon_step() {
  each_way([](const Context& context) {
    test_steps(context);
    test_one_step();
  });
}

}  // namespace native
