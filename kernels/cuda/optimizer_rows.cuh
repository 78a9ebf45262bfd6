// Steps of some rows of one tensor. Everything that is said of the rows lies on the device.
#pragma once

#include "optimizer_step.cuh"
#include "row_sort.cuh"

namespace boost_ext::cuda {
namespace {

// The list by row: the gradients of a row lie where its key does. Places of rows that there are not come last.
struct Rows {
  const unsigned* key;
  const std::int32_t* position;
  std::int64_t listed, rows, width;
  const void* values;
  DType type;
  bool aligned;
  float* means;  // of the row that begins at place s, or null

  BOOST_EXT_DEVICE bool begins(std::int64_t s) const { return key[s] < rows && (s == 0 || key[s - 1] != key[s]); }
  BOOST_EXT_DEVICE bool is_same(std::int64_t s, unsigned row) const { return s < listed && key[s] == row; }
  BOOST_EXT_DEVICE bool repeats(std::int64_t s) const { return is_same(s + 1, key[s]); }
  BOOST_EXT_DEVICE Coming coming_values(std::int64_t s, std::int64_t column, Count n) const {
    return coming_pack(values, type, position[s] * width + column, n, aligned);
  }
  BOOST_EXT_DEVICE Pack load_values(std::int64_t s, std::int64_t column, Count n) const {
    return load_pack(values, type, position[s] * width + column, n, aligned);
  }
};

BOOST_EXT_DEVICE std::int64_t thread_of_launch() { return std::int64_t{blockIdx.x} * kThreads + threadIdx.x; }

// As a sum that begins with 0.
BOOST_EXT_DEVICE Pack not_minus_zero(Pack g) {
#pragma unroll
  for (int j = 0; j < kPack; ++j) g.v[j] = 0 + g.v[j];
  return g;
}
// The gradient of a row that is listed once: n elements of it, from `column` on.
BOOST_EXT_DEVICE Pack only_row(const Rows& r, std::int64_t s, std::int64_t column, Count n) {
  return not_minus_zero(r.load_values(s, column, n));
}
// And of one that is listed more than once: in float64 before it is rounded, in the order of the list. Some reads are
// on their way at once, since a row may be most of the list.
BOOST_EXT_DEVICE Pack sum_of_rows(const Rows& r, std::int64_t s, std::int64_t column, Count n) {
  constexpr int kTogether = 8;
  const unsigned row = r.key[s];
  double sum[kPack] = {};
  for (bool more = true; more; s += kTogether) {
    Coming coming[kTogether];
    if (n.together || (r.aligned && n == kPack)) {
#pragma unroll
      for (int k = 0; k < kTogether; ++k) {
        coming[k] = {{}, DType::f32, Way::alone, nullptr};
        if (r.is_same(s + k, row)) coming[k] = r.coming_values(s + k, column, n);
      }
#pragma unroll
      for (int k = 0; k < kTogether; ++k) {
        const Pack g = coming[k].get();
#pragma unroll
        for (int j = 0; j < kPack; ++j) sum[j] += static_cast<double>(g.v[j]);
      }
    } else {
      for (int k = 0; k < kTogether && r.is_same(s + k, row); ++k) {
        const Pack g = r.load_values(s + k, column, n);
#pragma unroll
        for (int j = 0; j < kPack; ++j) sum[j] += static_cast<double>(g.v[j]);
      }
    }
    more = r.is_same(s + kTogether, row);
  }
  Pack g;
#pragma unroll
  for (int j = 0; j < kPack; ++j) g.v[j] = static_cast<float>(sum[j]);
  return g;
}

// Warps or blocks for the places of the list.
__global__ void __launch_bounds__(kThreads)
    mean_rows(const Rows r, const Place<0> at, const StepCall __grid_constant__ call) {
  if (call.skips()) return;
  const Ready ready(call, 0, 0);
  const bool warps = r.width <= kWarpWidth;
  const std::int64_t s = warps ? thread_of_launch() / kWarp : blockIdx.x;
  if (s >= r.listed || !r.begins(s)) return;
  const std::int64_t begin = r.key[s] * r.width;
  const bool repeats = r.repeats(s);
  const auto value = [&](std::int64_t j) {
    const float grad = (repeats ? sum_of_rows(r, s, j, 1) : only_row(r, s, j, 1)).v[0];
    const float w = ready.l2 != 0 ? load_weight(at, begin + j) : grad;
    return ready.scale * grad + ready.l2 * w;
  };
  const auto pack = [&](std::int64_t j, Count n) {
    const Pack grad = repeats ? sum_of_rows(r, s, j, n) : only_row(r, s, j, n);
    if (ready.l2 == 0) return sum_of_pack(ready, grad, grad);
    return sum_of_pack(ready, grad, load_weights(at, begin + j, n));
  };
  const bool packs = r.width % kPack == 0;
  const std::int64_t units = packs ? r.width / kPack : r.width;
  const auto unit = [&](std::int64_t j) {
    return packs ? pack(j * kPack, unit_of_row(j, units)) : static_cast<double>(value(j));
  };
  const double sum = warps ? sum_in_warp(units, unit) : sum_in_block(units, unit);
  if (warps ? threadIdx.x % kWarp == 0 : threadIdx.x == 0) {
    r.means[s] = static_cast<float>(sum / static_cast<double>(r.width));
  }
}

constexpr std::int64_t kRowChunk = kWarp * kPack;  // columns of a warp

template <class R, bool kNarrow>
__global__ void __launch_bounds__(kThreads)
    step_rows(const Rows r, const Place<R::kStates> at, const StepCall __grid_constant__ call, const RuleAt<R> made) {
  if (call.skips()) return;
  const R rule = made.get();
  const std::int64_t unit = thread_of_launch() / kWarp, parts = (r.width + kRowChunk - 1) / kRowChunk;
  const std::int64_t s = unit / parts, c = unit % parts * kRowChunk + threadIdx.x % kWarp * kPack;
  if (s >= r.listed || c >= r.width || !r.begins(s)) return;
  const Ready ready(call, 0, 0);
  const std::int64_t row = r.key[s];
  const std::uint64_t key = kNarrow ? key_of(call.key_of_tensor(0, 0), row) : 0;
  const auto center = [&](Pack& u) {
    if (r.means == nullptr) return;
#pragma unroll
    for (int j = 0; j < kPack; ++j) u.v[j] = u.v[j] - r.means[s];
  };
  const Count n = count_of(r.width - unit % parts * kRowChunk);
  const bool repeats = r.repeats(s);
  Pack sum{};
  if (repeats) sum = sum_of_rows(r, s, c, n);
  const auto gradient = [&] {
    Coming only{};
    if (!repeats) only = r.coming_values(s, c, n);
    return [=] { return repeats ? sum : not_minus_zero(only.get()); };
  };
  Random random;
  if constexpr (kNarrow) random = random_bits(key, c);
  step_pack<kNarrow>(rule, ready, at, row * r.width + c, n, gradient, center, random);
}

template <class R, bool kNarrow>
void step_listed(const Context& context, const OptimizerStep& s, const View& indices, const View& values) {
  const View& weights = s.weights[0];
  const std::int64_t listed = indices.size;
  Rows r{};
  const SortedRows sorted(context, static_cast<const std::int32_t*>(indices.data), listed, weights.rows);
  r.key = sorted.key, r.position = sorted.position;
  r.listed = listed, r.rows = sorted.limit, r.width = weights.size / weights.rows;
  r.values = values.data, r.type = values.dtype;
  r.aligned = reinterpret_cast<std::uintptr_t>(values.data) % 16 == 0 && r.width % kPack == 0;
  const Workspace<float> means(context, s.centralize[0] ? listed : 0);
  r.means = means.get();

  Place<R::kStates> at{};
  std::uintptr_t addresses = 0;
  const auto seen = [&addresses](void* p) {
    addresses |= reinterpret_cast<std::uintptr_t>(p);
    return p;
  };
  at.weights = seen(weights.data), at.type = weights.dtype;
  at.narrow = seen(s.narrow[0].data), at.narrow_type = s.narrow[0].dtype;
  for (int k = 0; k < R::kStates; ++k) at.state[k] = {seen(s.state[k][0].data), nullptr, s.state[k][0].dtype};
  at.aligned = addresses % 16 == 0 && r.width % kPack == 0;

  StepCall call(s);
  Groups(s, call).of(0);
  const auto blocks = [](std::int64_t threads) { return (threads + kThreads - 1) / kThreads; };
  if (r.means != nullptr) {
    Place<0> weights_at{};
    weights_at.weights = at.weights, weights_at.type = at.type;
    weights_at.narrow = at.narrow, weights_at.narrow_type = at.narrow_type, weights_at.aligned = at.aligned;
    const std::int64_t count = r.width <= kWarpWidth ? blocks(listed * kWarp) : listed;
    launch(context, mean_rows, count, kThreads, r, weights_at, call);
  }
  const std::int64_t parts = (r.width + kRowChunk - 1) / kRowChunk;
  const RuleOfStep<R> rule(context, call);
  launch(context, step_rows<R, kNarrow>, blocks(listed * parts * kWarp), kThreads, r, at, call, rule.get());
}

}  // namespace
}  // namespace boost_ext::cuda
