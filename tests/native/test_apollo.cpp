// apollo_step and galore_step on exactly sized arrays: storage types, shapes around units and tiles, ranks, masters,
// AdamW beside.
#include <algorithm>
#include <vector>

#include "harness.h"
#include "ops/apollo_step.h"
#include "ops/galore_step.h"

namespace native {

void test_apollo_step();

namespace {

using namespace boost_ext;

// The first ones by AdamW.
const Shape kShapes[] = {{},        {0},          {17},       {2, 0},     {5000},    {5, 7},
                         {1, 1},    {33, 130},    {130, 33},  {40, 300},  {300, 40}, {3, 4100},
                         {4100, 3}, {9, 5, 3, 3}, {2, 9, 10}, {131, 140}, {140, 131}};
constexpr std::size_t kOthers = 5;
constexpr DType kFloats[] = {DType::f32, DType::f16, DType::bf16};

// One tensor of each shape, with everything that a step takes: of GaLore bases, no larger than the shorter side.
struct Model {
  std::vector<Array> weights, masters, grads, first, second, own;
  bool galore;

  Model(DType of_weight, DType of_gradient, bool mastered, std::int64_t most, bool of_galore) : galore(of_galore) {
    std::mt19937 random(7);
    for (std::size_t t = 0; t < std::size(kShapes); ++t) {
      std::int64_t size = 1;
      for (const std::int64_t n : kShapes[t]) size *= n;
      const bool matrix = t >= kOthers;
      const std::int64_t side = matrix ? std::min(kShapes[t][0], size / kShapes[t][0]) : 0;
      const std::int64_t rank = galore ? std::min(most, side) : most;
      const std::int64_t state = matrix ? rank * std::max(kShapes[t][0], size / kShapes[t][0]) : size;
      const auto add = [&](std::vector<Array>& list, DType dtype, std::int64_t n) {
        list.emplace_back(dtype, n);
        list.back().fill(random);
      };
      add(weights, of_weight, size);
      add(grads, of_gradient, size);
      add(first, DType::f32, state);
      second.emplace_back(DType::f32, state);
      second.back().fill(0.25);
      own.emplace_back(DType::f32, !matrix ? 0 : galore ? side * rank : 1);
      own.back().fill(0.5);
      if (!mastered) continue;
      masters.emplace_back(DType::f32, of_weight == DType::f32 ? 0 : size);
      for (std::int64_t i = 0; i < masters.back().size(); ++i) masters.back().set(i, weights.back().get(i));
    }
  }
  void step(const Context& context, const ApolloSettings& settings) {
    const ProjectedTensors tensors{{shaped(weights, kShapes), shaped(masters, kShapes), shaped(grads, kShapes),
                                    shaped(first, kShapes), shaped(second, kShapes)},
                                   shaped(own, kShapes)};
    if (galore)
      galore_step(context, settings, tensors);
    else
      apollo_step(context, settings, tensors);
  }
};

ApolloSettings usual() {
  ApolloSettings settings;
  settings.step.rule = Rule::adamw;
  settings.step.hyper = {0.9, 0.999, 1e-8};
  settings.step.lr = {0.25F};
  return settings;
}

constexpr std::int64_t kRank = 3, kSlab = 128;  // products of a sum that are added up before others

// By three threads as by one. Units and tiles are those of every dtype: at other ranks, pairs of one dtype are enough.
void test_steps(std::int64_t rank, bool galore) {
  ApolloSettings settings = usual();
  settings.step.step = 2;
  settings.update_gap = 1;
  settings.step.scale = 0.5;
  settings.step.decay = {0.25F};
  Context context = cpu_context(), one = context;
  context.threads = 3;
  one.threads = 1;
  for (DType of_weight : kFloats) {
    for (DType of_gradient : kFloats) {
      if (rank != kRank && of_gradient != of_weight) continue;
      const bool mastered = of_gradient != DType::f32;
      settings.step.centralize = {static_cast<unsigned char>(of_gradient == DType::bf16)};
      settings.tensor_wise = of_weight == DType::f16;
      Model model(of_weight, of_gradient, mastered, rank, galore);
      Model alone(of_weight, of_gradient, mastered, rank, galore);
      model.step(context, settings);
      alone.step(one, settings);
      bool right = true;
      for (std::size_t t = 0; t < model.weights.size(); ++t) {
        right = right && model.weights[t].same_bits(alone.weights[t]) && model.first[t].same_bits(alone.first[t]);
        right = right && model.own[t].same_bits(alone.own[t]);
        for (std::int64_t i = 0; i < model.weights[t].size(); ++i) {
          right = right && std::isfinite(model.weights[t].get(i));
        }
      }
      CHECK(right);
    }
  }
}

// One number is a matrix: in the first step A is a sign, and the step as long as the rate.
void test_one_step() {
  Array w(DType::f32, 1), g(DType::f32, 1), m(DType::f32, 1), v(DType::f32, 1), n(DType::f32, 1);
  w.fill(1.0), g.fill(-2.0), m.fill(0.0), v.fill(0.0), n.fill(0.0);
  const View weight = shaped(w, {1, 1}), grad = shaped(g, {1, 1});
  ApolloSettings settings = usual();
  settings.step.decay = {0.5F};
  const auto step = [&](const View& of) {
    apollo_step({}, settings, {{{weight}, {}, {of}, {m.view()}, {v.view()}}, {n.view()}});
  };
  step(grad);
  const double p = m.get(0) / (0.1 * -2);  // the basis
  CHECK(std::abs(w.get(0) - (1 - 0.25 * 0.5 + 0.25 / std::abs(p))) < 1e-5);
  CHECK(std::abs(n.get(0) - 1 / std::abs(p)) < 1e-5 / std::abs(p));
  settings.update_gap = 0;
  CHECK_THROWS(step(grad), std::invalid_argument, "apollo_step: update_proj_gap must be >= 1, got 0");
  settings.update_gap = 1;
  CHECK_THROWS(step(weight), std::invalid_argument,
               "apollo_step: params[0] is written and must not overlap other arguments, but it overlaps grads[0]");
}

}  // namespace

void test_apollo_step() {
  for (const std::string& isa : cpu_features()) {
    set_isa(isa);
    for (std::int64_t rank : {std::int64_t{1}, kRank, std::int64_t{9}}) {
      for (bool galore : {false, true}) test_steps(rank, galore);
    }
    test_steps(kSlab + 1, true);
    set_float32_matmul_precision("medium");
    for (std::int64_t rank : {kRank, kSlab + 1}) {
      if (has_narrow_products()) test_steps(rank, true);
    }
    set_float32_matmul_precision("highest");
    test_one_step();
  }
}

}  // namespace native
