#include "ops/apollo_step.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace boost_ext {
namespace {

constexpr const char* kApolloStep = "apollo_step";

void require_apollo_settings(const ApolloSettings& s, std::size_t tensors) {
  require(std::isfinite(s.factor) && s.factor >= 0, kApolloStep, ": scale must be finite and >= 0, got ", s.factor);
  require(s.limit == 0 || (std::isfinite(s.limit) && s.limit >= 1), kApolloStep,
          ": norm_growth must be finite and >= 1, got ", s.limit);
  require(s.update_gap >= 1, kApolloStep, ": update_proj_gap must be >= 1, got ", s.update_gap);
  require(s.seed >= 0, kApolloStep, ": seed must be >= 0, got ", s.seed);
  require(s.numbers.empty() || s.numbers.size() == tensors, kApolloStep,
          ": tensor_numbers must hold one for each of the ", tensors, " parameters, got ", s.numbers.size());
  for (const std::int64_t number : s.numbers) {
    require(number >= 0 && number <= std::numeric_limits<std::uint32_t>::max(), kApolloStep,
            ": tensor_numbers must be >= 0 and < 2**32, got ", number);
  }
  require_shared_settings(kApolloStep, s.step, "eps");
  require((s.step.step - 1) / s.update_gap <= std::numeric_limits<std::uint32_t>::max(), kApolloStep,
          ": step must be at most 2**32 times update_proj_gap, got ", s.step.step);
}

bool has_norm(const ApolloTensors& a, std::size_t i) { return a.norms[i].size != 0; }

void require_written_of(const ApolloTensors& a, const View& skip) {
  Overlap overlap(kApolloStep);
  if (skip.data != nullptr) overlap.reads("skip", skip);
  overlap.reads({"grads", a.grads});
  for (std::size_t i = 0; i < a.weights.size(); ++i) {
    const View& w = a.weights[i];
    const auto at = static_cast<std::int64_t>(i);
    const auto written = [&](const char* arg, const View& v, std::int64_t size) {
      require_dtype(kApolloStep, {arg, at}, v, DType::f32);
      require_size(kApolloStep, {arg, at}, v, size);
      require_writable(kApolloStep, {arg, at}, v);
      overlap.writes({arg, at}, v);
    };
    require_writable(kApolloStep, {"params", at}, w);
    overlap.writes({"params", at}, w);
    std::int64_t size = w.size;
    if (has_norm(a, i)) {
      require(w.ndim >= 2 && w.size > 0, kApolloStep, ": ", Name("norms", at),
              " must be none for a tensor that is empty or has fewer than two axes, got an array");
      written("norms", a.norms[i], 1);
      const std::int64_t side = std::max(w.rows, w.size / w.rows);
      size = a.first[i].size;
      require(size > 0 && size % side == 0, kApolloStep, ": ", Name("moments1", at),
              " must have a multiple of the longer side of its matrix, ", side, ", as elements, got ", size);
    }
    written("moments1", a.first[i], size);
    written("moments2", a.second[i], size);
    if (a.masters.empty()) continue;
    if (w.dtype != DType::f32) {
      written("masters", a.masters[i], w.size);
      continue;
    }
    require(a.masters[i].size == 0, kApolloStep, ": ", Name("masters", at),
            " must be empty beside a float32 parameter, got ", a.masters[i].size, " elements");
  }
  overlap.check();
}

}  // namespace

ApolloSettings apollo_settings(const double* x, std::size_t count) {
  require(count == 4, kApolloStep, ": hyper must hold 4 numbers, got ", count);
  const bool in_range = x[3] >= 1 && x[3] <= 0x1p53;
  ApolloSettings settings{x[0] != 0, x[1], x[2], in_range ? static_cast<std::int64_t>(x[3]) : 0, 0, {}, {}};
  settings.step.rule = Rule::adamw;
  return settings;
}

void apollo_step(const Context& context, const ApolloSettings& settings, const ApolloTensors& a) {
  const View& skip = settings.step.at.skip;
  const Device device =
      require_device(kApolloStep, {&a.weights, &a.grads, &a.first, &a.second, &a.norms, &a.masters}, {skip});
  const List weights{"params", a.weights};
  require_lists(kApolloStep, a);
  require_same_count(kApolloStep, {"norms", a.norms}, weights);
  if (!a.masters.empty()) require_same_count(kApolloStep, {"masters", a.masters}, weights);
  require_apollo_settings(settings, a.weights.size());
  if (skip.data != nullptr) {
    require_dtype(kApolloStep, "skip", skip, DType::f32);
    require_size(kApolloStep, "skip", skip, 1);
  }
  const StepSettings all = spread_out(kApolloStep, settings.step, a.weights);
  require_written_of(a, skip);
  const auto* flag = static_cast<const float*>(skip.data);
  if (device == Device::cpu && flag != nullptr && *flag != 0) return;

  std::vector<std::size_t> matrices, others;
  for (std::size_t i = 0; i < a.weights.size(); ++i) (has_norm(a, i) ? matrices : others).push_back(i);
  if (!others.empty()) step_others(context, all, a, others);
  if (matrices.empty()) return;
  const MatrixLists m(all, a, matrices);
  std::vector<DropoutKey> keys;
  const auto draw = static_cast<std::uint32_t>((all.step - 1) / settings.update_gap);
  for (const std::size_t i : matrices) {
    const std::int64_t number = settings.numbers.empty() ? static_cast<std::int64_t>(i) : settings.numbers[i];
    keys.push_back({static_cast<std::uint64_t>(settings.seed), draw, static_cast<std::uint32_t>(number)});
  }
  const Views grads = some_of(a.grads, matrices), first = some_of(a.first, matrices);
  const Views second = some_of(a.second, matrices), norms = some_of(a.norms, matrices);
  const std::vector<float> lr = some_of(all.lr, matrices);
  const ApolloStep step{
      &settings,           m.wide,      m.narrow, grads, first, second, norms, m.scale.data(), m.keep.data(), lr.data(),
      m.centralize.data(), keys.data(), flag};
  if (device == Device::cuda) return BOOST_EXT_CUDA(apollo_step)(context, step);
  BOOST_EXT_CPU(apollo_step)(context, step);
}

}  // namespace boost_ext
