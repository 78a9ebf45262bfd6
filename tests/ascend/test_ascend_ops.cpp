// The ops with views of Ascend: what they launch, beside the CPU kernels, and what they refuse.
#include <numeric>

#include "device.h"
#include "emulators/ascend/launch.h"
#include "ops/adasum.h"
#include "ops/bfgs_update.h"
#include "ops/device.h"
#include "ops/global_norm.h"
#include "ops/optimizer_step.h"
#include "ops/pca_back_project.h"
#include "ops/pca_project.h"
#include "ops/unscale_and_check.h"

namespace native {
namespace {

using namespace boost_ext;

View there(const Array& a) {
  View v = a.view();
  v.device = boost_ext::Device::ascend;
  return v;
}
Views there(const std::vector<Array>& arrays) {
  Views views;
  for (const Array& a : arrays) views.push_back(there(a));
  return views;
}
Views here(const std::vector<Array>& arrays) {
  Views views;
  for (const Array& a : arrays) views.push_back(a.view());
  return views;
}

Context on_stream() {
  static int stream = 0;
  Context c;
  c.stream = &stream;
  return c;
}

std::vector<std::int64_t> sizes = {7, 0, 300, 8193};  // more than a tile, and nothing

std::vector<Array> arrays_of(DType dtype, std::mt19937& random) {
  std::vector<Array> arrays;
  for (const std::int64_t n : sizes) {
    arrays.emplace_back(dtype, n);
    arrays.back().fill(random);
  }
  return arrays;
}
std::vector<Array> copies(const std::vector<Array>& arrays) {
  std::vector<Array> result;
  for (const Array& a : arrays) {
    result.emplace_back(a.dtype(), a.size());
    result.back().copy(a);
  }
  return result;
}
bool same(const std::vector<Array>& a, const std::vector<Array>& b) {
  bool all = a.size() == b.size();
  for (std::size_t i = 0; all && i < a.size(); ++i) all = a[i].same_bits(b[i]);
  return all;
}
std::int64_t total() { return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0}); }

void test_unscale(DType dtype, std::mt19937& random) {
  for (const double factor : {0.25, 1.0, 1e-39}) {
    for (const double special : {0.0, static_cast<double>(INFINITY), static_cast<double>(NAN)}) {
      std::vector<Array> ours = arrays_of(dtype, random);
      if (special != 0) ours[2].set(299, special);
      std::vector<Array> theirs = copies(ours);
      Array found(DType::f32, 1), expected(DType::f32, 1);
      Views twice = there(ours), on_cpu = here(theirs);
      twice.push_back(twice[0]);  // a tensor that is listed again is scaled once
      on_cpu.push_back(on_cpu[0]);
      unscale_and_check(on_stream(), twice, Number{factor, {}}, View{}, there(found));
      unscale_and_check(cpu_context(), on_cpu, Number{factor, {}}, View{}, expected.view());
      CHECK(std::isnan(special) || same(ours, theirs));
      CHECK(found.same_bits(expected) && found.get(0) == (special != 0 ? 1 : 0));
    }
  }
}

void test_adasum(DType dtype, std::mt19937& random) {
  std::vector<Array> a = arrays_of(dtype, random), b = arrays_of(dtype, random), out = copies(a), expected = copies(a);
  adasum_pair(on_stream(), there(a), there(b), there(out));
  adasum_pair(cpu_context(), here(a), here(b), here(expected));
  bool right = true;
  for (std::size_t t = 0; t < out.size(); ++t) {
    for (std::int64_t i = 0; i < out[t].size(); ++i) right = right && close(out[t], i, expected[t].get(i), 0.1);
  }
  CHECK(right);
  adasum_pair(on_stream(), there(a), there(b), there(a));
  CHECK(same(a, out));
}

void test_projections(DType dtype, std::mt19937& random) {
  const std::int64_t k = 5;
  Array P(dtype, k * total(), k), sums(DType::f32, k), expected(DType::f32, k);
  P.fill(random);
  const std::vector<Array> g = arrays_of(dtype, random);
  pca_project(on_stream(), there(P), there(g), there(sums));
  pca_project(cpu_context(), P.view(), here(g), expected.view());
  CHECK(sums.same_bits(expected));  // no sum needs more than 24 bits

  Array nothing(dtype, 0, k), empty(dtype, 0);
  sums.fill(3);
  pca_project(on_stream(), there(nothing), {there(empty), there(empty)}, there(sums));
  for (std::int64_t r = 0; r < k; ++r) CHECK(sums.get(r) == 0);

  for (const std::size_t count : {1, 2, 3, 4}) {
    std::vector<Array> vectors;
    std::vector<std::vector<Array>> ours, theirs;
    std::vector<Views> to, on_cpu;
    for (std::size_t j = 0; j < count; ++j) {
      vectors.emplace_back(DType::f32, k);
      vectors.back().fill(random);
      ours.push_back(arrays_of(dtype, random));
      theirs.push_back(arrays_of(dtype, random));
      to.push_back(there(ours.back()));
      on_cpu.push_back(here(theirs.back()));
    }
    pca_back_project(on_stream(), there(P), there(vectors), to);
    pca_back_project(cpu_context(), P.view(), here(vectors), on_cpu);
    for (std::size_t j = 0; j < count; ++j) CHECK(same(ours[j], theirs[j]));
  }
}

void test_bfgs() {
  const std::int64_t k = 20;
  Array B(DType::f32, k * k, k), expected(DType::f32, k * k, k), s(DType::f32, k), y(DType::f32, k);
  Array updated(DType::f32, 1);
  B.fill(0);
  for (std::int64_t i = 0; i < k; ++i) {
    B.set(i * k + i, 1);
    s.set(i, 0.1 * static_cast<double>(i + 1));
    y.set(i, 0.1 * static_cast<double>(i % 7 + 1));
  }
  expected.copy(B);
  bfgs_update(on_stream(), there(B), there(s), there(y), 1e-20, there(updated));
  float on_cpu = 0;
  bfgs_update(cpu_context(), expected.view(), s.view(), y.view(), 1e-20, view_of(on_cpu));
  CHECK(on_cpu == 1 && updated.get(0) == 1);
  bool right = true;
  for (std::int64_t i = 0; i < k * k; ++i) right = right && std::fabs(B.get(i) - expected.get(i)) < 1e-5;
  CHECK(right);
  y.fill(0);
  expected.copy(B);
  bfgs_update(on_stream(), there(B), there(s), there(y), 1e-20, there(updated));
  CHECK(updated.get(0) == 0 && B.same_bits(expected));
}

struct Step {
  std::vector<Array> weights, masters, grads, moments, squares;

  Step(DType dtype, bool with_masters, std::mt19937& random)
      : weights(arrays_of(dtype, random)),
        grads(arrays_of(dtype, random)),
        moments(arrays_of(DType::f32, random)),
        squares(arrays_of(DType::f32, random)) {
    for (Array& v : squares) v.fill(0.5);
    for (std::size_t i = 0; with_masters && i < weights.size(); ++i) {
      masters.emplace_back(DType::f32, weights[i].size());
      for (std::int64_t j = 0; j < weights[i].size(); ++j) masters[i].set(j, weights[i].get(j) + (j % 3 ? 0 : 0.25));
    }
  }
  Step(const Step& s)
      : weights(copies(s.weights)),
        masters(copies(s.masters)),
        grads(copies(s.grads)),
        moments(copies(s.moments)),
        squares(copies(s.squares)) {}
  bool operator==(const Step& s) const {
    return same(weights, s.weights) && same(masters, s.masters) && same(moments, s.moments) && same(squares, s.squares);
  }
  template <class Where> void run(const Context& context, const StepSettings& settings, Where where) const {
    std::vector<Views> state{where(moments)};
    if (settings.rule != Rule::momentum) state.push_back(where(squares));
    optimizer_step(context, settings, where(weights), where(masters), where(grads), state);
  }
};

const auto kThere = [](const std::vector<Array>& arrays) { return there(arrays); };
const auto kHere = [](const std::vector<Array>& arrays) { return here(arrays); };

StepSettings settings_of(Rule rule) {
  StepSettings s;
  s.rule = rule;
  s.hyper = rule == Rule::momentum ? std::vector<double>{0.9, 1, 0}
            : rule == Rule::adam   ? std::vector<double>{0.9, 0.999, 1e-8, 0, 0}
                                   : std::vector<double>{0.9, 0.999, 1e-6, 0};
  s.scale = 0.125;
  s.step = 3;
  s.lr = {0.1F, 0.2F, 0.3F, 0.4F};
  s.decay = {0.01F, 0, 0.02F, 0.03F};
  s.ratio = {1, 0.5F, 2, 0.25F};
  return s;
}

void test_steps(DType dtype, std::mt19937& random) {
  for (const Rule rule : {Rule::momentum, Rule::adam, Rule::adam_weight_decay}) {
    for (const bool masters : {false, true}) {
      if (masters && dtype == DType::f32) continue;
      const Step ours(dtype, masters, random), theirs(ours);
      ours.run(on_stream(), settings_of(rule), kThere);
      theirs.run(cpu_context(), settings_of(rule), kHere);
      CHECK(ours == theirs);
    }
  }
}

// Masters stand beside some of the weights only.
void test_mixed_weights(std::mt19937& random) {
  Step ours(DType::f16, true, random);
  ours.weights[2] = Array(DType::f32, sizes[2]);
  ours.weights[2].fill(random);
  ours.grads[2] = Array(DType::f32, sizes[2]);
  ours.grads[2].fill(random);
  ours.masters[2] = Array(DType::f32, 0);
  const Step theirs(ours);
  ours.run(on_stream(), settings_of(Rule::adam), kThere);
  theirs.run(cpu_context(), settings_of(Rule::adam), kHere);
  CHECK(ours == theirs);
}

// More tensors than a table holds: small, large and empty ones.
void test_long_lists(std::mt19937& random) {
  const std::vector<std::int64_t> few = sizes;
  sizes.clear();
  for (std::int64_t i = 0; i < 64; ++i) sizes.push_back(i % 8 == 0 ? 0 : i * i * 3);
  set_cores(5);
  std::vector<Array> ours = arrays_of(DType::f16, random), theirs = copies(ours);
  Array found(DType::f32, 1);
  int before = emulator::launches;
  unscale_and_check(on_stream(), there(ours), Number{0.5, {}}, View{}, there(found));
  CHECK(emulator::launches - before == 2 + 1);  // 56 tensors in tables of 28, and the flag
  CHECK(unscale_and_find(cpu_context(), here(theirs), 0.5)[0].found() == false && found.get(0) == 0);
  CHECK(same(ours, theirs));
  const Step step(DType::f16, true, random), expected(step);
  StepSettings settings = settings_of(Rule::adam);
  settings.lr = {0.1F};
  settings.decay = {0.01F};
  settings.ratio.clear();
  before = emulator::launches;
  step.run(on_stream(), settings, kThere);
  CHECK(emulator::launches - before == 7);  // tables of 9
  expected.run(cpu_context(), settings, kHere);
  CHECK(step == expected);
  sizes = few;
}

void test_refused_steps(std::mt19937& random) {
  const Step s(DType::f16, false, random), before(s);
  StepSettings settings = settings_of(Rule::adam);
  settings.centralize = {1};
  Views matrices = there(s.weights);
  matrices[2].ndim = 2;
  const std::vector<Views> state{there(s.moments), there(s.squares)};
  const auto step = [&](const Views& w, const Views& g, const std::vector<Views>& all) {
    optimizer_step(on_stream(), settings, w, {}, g, all);
  };
  CHECK_THROWS(step(matrices, there(s.grads), state), std::invalid_argument,
               "adam_step: centralize must be False on Ascend, whose kernels form no means, got True for params[2]");
  settings.centralize.clear();
  std::vector<Views> amsgrad = state;
  const std::vector<Array> largest = arrays_of(DType::f32, random);
  amsgrad.push_back(there(largest));
  CHECK_THROWS(step(there(s.weights), there(s.grads), amsgrad), std::invalid_argument,
               "adam_step: max_moments2 must be left out on Ascend, got one (AMSGrad)");
  const std::vector<Array> wide = arrays_of(DType::f32, random), narrow = arrays_of(DType::bf16, random);
  CHECK_THROWS(step(there(s.weights), there(wide), state), TypeError,
               "adam_step: grads[0] must be float16 as the parameter is, on Ascend, got float32");
  CHECK_THROWS(step(there(s.weights), there(s.grads), {there(s.moments), there(narrow)}), TypeError,
               "adam_step: moments2[0] must be float32 on Ascend, got bfloat16");
  settings.rule = Rule::lamb;
  settings.hyper = {0.9, 0.999, 1e-6};
  CHECK_THROWS(step(there(s.weights), there(s.grads), state), std::runtime_error,
               "lamb_step: got Ascend arrays, but this op has no Ascend kernel");
  CHECK_THROWS(step(there(s.weights), here(s.grads), state), std::invalid_argument,
               "lamb_step: all arguments must live on one device, got Ascend and CPU");
  const Array rows(DType::i32, 1), values(DType::f16, 1), m(DType::f32, 7);
  settings = settings_of(Rule::momentum);
  CHECK_THROWS(
      optimizer_step_rows(on_stream(), settings, there(s.weights[0]), {}, there(rows), there(values), {there(m)}),
      std::runtime_error, "momentum_step: got Ascend arrays, but this op has no Ascend kernel");
  CHECK(s == before);
}

void test_refusals(std::mt19937& random) {
  const Context context = on_stream();
  Array g(DType::f32, 8), h(DType::f16, 8), one(DType::f32, 1), scale(DType::f32, 1), number(DType::f64, 3),
      report(DType::f64, 4);
  g.fill(random);
  CHECK_THROWS(global_norm(context, {there(g)}, there(number)), std::runtime_error,
               "global_norm: got Ascend arrays, but this op has no Ascend kernel");
  CHECK_THROWS(unscale_and_check(context, {there(g)}, Number{1, {}}, there(report), there(one)), std::invalid_argument,
               "unscale_and_check: report must be left out on Ascend, got one");
  CHECK_THROWS(unscale_and_check(context, {there(g)}, Number{0, there(scale)}, View{}, there(one)),
               std::invalid_argument, "unscale_and_check: inv_scale must be a number on Ascend, got an array");
  const char* dots = "adasum_dots: got Ascend arrays, but dots are float64, which no Ascend kernel computes; ";
  CHECK_THROWS(adasum_dots(context, {there(g)}, {there(g)}, there(number)), std::runtime_error,
               text(dots, "adasum_pair has one"));
  Array P(DType::f32, 16, 2), sums(DType::f32, 2), big(DType::f32, 2049, 2049), v(DType::f32, 2049);
  CHECK_THROWS(pca_project(context, there(P), {there(h)}, there(sums)), TypeError,
               "pca_project: grads[0] must be float32 as P is, on Ascend, got float16");
  CHECK_THROWS(pca_back_project(context, there(P), {there(sums), there(sums)}, {{there(g)}, {there(h)}}), TypeError,
               "pca_back_project: out[1][0] must be float32 as P is, on Ascend, got float16");
  CHECK_THROWS(pca_back_project(context, there(big), {there(v)}, {{there(one)}}), std::invalid_argument,
               "pca_back_project: P must have at most 2048 rows on Ascend, got 2049");
  Array B(DType::f32, 193 * 193, 193), s(DType::f32, 193), y(DType::f32, 193), wide(DType::f64, 4, 2),
      s64(DType::f64, 2), y64(DType::f64, 2);
  CHECK_THROWS(bfgs_update(context, there(B), there(s), there(y), 0, there(one)), std::invalid_argument,
               "bfgs_update: B must have at most 192 rows on Ascend, got 193");
  CHECK_THROWS(bfgs_update(context, there(wide), there(s64), there(y64), 0, there(one)), TypeError,
               "bfgs_update: B must be float32 on Ascend, got float64");
  Context other = context;
  other.device_id = 3;
  CHECK_THROWS(unscale_and_check(other, {there(g)}, Number{1, {}}, View{}, there(one)), std::runtime_error,
               "unscale_and_check: Ascend device 3 cannot be used by this process");
}

}  // namespace

void test_ascend_ops() {
  CHECK(ascend::build() != nullptr && ascend::build()->emulated);
  emulator::streams.clear();
  std::mt19937 random(23);
  std::int32_t cores = 1;
  for (const DType dtype : kStorage) {
    set_cores(cores++);
    test_unscale(dtype, random);
    test_adasum(dtype, random);
    test_projections(dtype, random);
    test_steps(dtype, random);
  }
  test_bfgs();
  test_mixed_weights(random);
  test_long_lists(random);
  CHECK(emulator::streams == std::set<void*>{on_stream().stream});
  test_refused_steps(random);
  test_refusals(random);
  CHECK(emulator::regions.empty());  // no call leaves device memory behind
  set_cores(4);
}

}  // namespace native
