// Steps of some rows of one tensor. Everything that is said of the rows lies on the device.
#pragma once

#include "optimizer_step.cuh"

namespace boost_ext::cuda {
namespace {

// Which rows there are and where they are listed. A position of the list stands for its row if it came first to the
// row's count; which one that is, is chance, and decides nothing. The positions of a row that occurs more than once
// are put into their order by how many of them are smaller.
struct Rows {
  const std::int32_t* index;
  std::int64_t listed, rows, width;
  const void* values;
  DType type;
  bool aligned;
  std::int32_t *place, *count, *start, *order, *sorted, *cursor;
  float* means;  // of position i, or null

  BOOST_EXT_DEVICE bool stands_for_row(std::int64_t i) const { return place[i] == 0; }
};

BOOST_EXT_DEVICE std::int64_t position() { return std::int64_t{blockIdx.x} * kThreads + threadIdx.x; }

__global__ void count_rows(const Rows r) {
  const std::int64_t i = position();
  if (i >= r.listed) return;
  const std::int32_t row = r.index[i];
  r.place[i] = row >= 0 && row < r.rows ? atomicAdd(&r.count[row], 1) : -1;
}
__global__ void begin_rows(const Rows r) {
  const std::int64_t i = position();
  if (i >= r.listed || !r.stands_for_row(i)) return;
  const std::int32_t row = r.index[i];
  if (r.count[row] > 1) r.start[row] = atomicAdd(r.cursor, r.count[row]);
}
__global__ void gather_rows(const Rows r) {
  const std::int64_t i = position();
  if (i >= r.listed || r.place[i] < 0) return;
  const std::int32_t row = r.index[i];
  if (r.count[row] > 1) r.order[r.start[row] + r.place[i]] = static_cast<std::int32_t>(i);
}
__global__ void sort_rows(const Rows r) {
  const std::int64_t i = position();
  if (i >= r.listed || r.place[i] < 0) return;
  const std::int32_t row = r.index[i], count = r.count[row];
  if (count < 2) return;
  const std::int32_t* order = r.order + r.start[row];
  std::int32_t smaller = 0;
  for (std::int32_t k = 0; k < count; ++k) smaller += order[k] < i;
  r.sorted[r.start[row] + smaller] = static_cast<std::int32_t>(i);
}

// The gradient of the row of position i, in float64 before it is rounded: n elements of it, from `column` on.
BOOST_EXT_DEVICE Pack sum_of_row(const Rows& r, std::int64_t i, std::int64_t column, int n) {
  const std::int32_t row = r.index[i], count = r.count[row];
  if (count == 1) {
    Pack g = load_pack(r.values, r.type, i * r.width + column, n, r.aligned);
#pragma unroll
    for (int j = 0; j < kPack; ++j) g.v[j] = 0 + g.v[j];  // as a sum that begins with 0: there is no -0
    return g;
  }
  double sum[kPack] = {};
  const std::int32_t* sorted = r.sorted + r.start[row];
  for (std::int32_t k = 0; k < count; ++k) {
    const Pack g = load_pack(r.values, r.type, sorted[k] * r.width + column, n, r.aligned);
#pragma unroll
    for (int j = 0; j < kPack; ++j) sum[j] += static_cast<double>(g.v[j]);
  }
  Pack g;
#pragma unroll
  for (int j = 0; j < kPack; ++j) g.v[j] = static_cast<float>(sum[j]);
  return g;
}

// Warps or blocks for the positions of the list.
__global__ void __launch_bounds__(kThreads)
    mean_rows(const Rows r, const Place<0> at, const __grid_constant__ StepCall call) {
  if (call.skips()) return;
  const Ready ready(call, 0, 0);
  const bool warps = r.width <= kWarpWidth;
  const std::int64_t i = warps ? position() / kWarp : blockIdx.x;
  if (i >= r.listed || !r.stands_for_row(i)) return;
  const std::int64_t begin = r.index[i] * r.width;
  const auto value = [&](std::int64_t j) {
    const float grad = sum_of_row(r, i, j, 1).v[0];
    float w = grad;
    if (ready.l2 != 0) {
      w = load(at.weights, at.type, begin + j);
      if (at.narrow != nullptr) w = followed(at.narrow_type, w, load(at.narrow, at.narrow_type, begin + j));
    }
    return ready.scale * grad + ready.l2 * w;
  };
  const double sum = warps ? sum_in_warp(r.width, value) : sum_in_block(r.width, value);
  if (warps ? threadIdx.x % kWarp == 0 : threadIdx.x == 0) {
    r.means[i] = static_cast<float>(sum / static_cast<double>(r.width));
  }
}

constexpr std::int64_t kRowChunk = 1024;  // columns of a warp

template <class R, bool kNarrow>
__global__ void __launch_bounds__(kThreads)
    step_rows(const Rows r, const Place<R::kStates> at, const __grid_constant__ StepCall call, const R made) {
  if (call.skips()) return;
  const R rule = rule_of(call, made);
  const std::int64_t unit = position() / kWarp, parts = (r.width + kRowChunk - 1) / kRowChunk;
  const std::int64_t i = unit / parts, part = unit % parts;
  if (i >= r.listed || !r.stands_for_row(i)) return;
  const Ready ready(call, 0, 0);
  const std::int32_t row = r.index[i];
  const std::uint64_t key = kNarrow ? key_of(call.key_of_tensor(0, 0), row) : 0;
  const auto center = [&](Pack& u) {
    if (r.means == nullptr) return;
#pragma unroll
    for (int j = 0; j < kPack; ++j) u.v[j] = u.v[j] - r.means[i];
  };
  const std::int64_t stop = (part + 1) * kRowChunk < r.width ? (part + 1) * kRowChunk : r.width;
  for (std::int64_t c = part * kRowChunk + threadIdx.x % kWarp * kPack; c < stop; c += kWarp * kPack) {
    const int n = stop - c < kPack ? static_cast<int>(stop - c) : kPack;
    Random random;
    if constexpr (kNarrow) random = random_bits(key, c);
    step_pack<kNarrow>(rule, ready, at, row * r.width + c, n, [&] { return sum_of_row(r, i, c, n); }, center, random);
  }
}

template <class R, bool kNarrow>
void step_listed(const Context& context, const OptimizerStep& s, const View& indices, const View& values) {
  const View& weights = s.weights[0];
  const std::int64_t listed = indices.size;
  Rows r{};
  r.index = static_cast<const std::int32_t*>(indices.data);
  r.listed = listed, r.rows = weights.rows, r.width = weights.size / weights.rows;
  r.values = values.data, r.type = values.dtype;
  r.aligned = reinterpret_cast<std::uintptr_t>(values.data) % 16 == 0 && r.width % kPack == 0;
  const Workspace<std::int32_t> of_rows(context, 2 * r.rows + 1), of_list(context, 3 * listed);
  const Workspace<float> means(context, s.centralize[0] ? listed : 0);
  r.count = of_rows.get(), r.cursor = r.count + r.rows, r.start = r.cursor + 1;
  r.place = of_list.get(), r.order = r.place + listed, r.sorted = r.order + listed;
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
  check(cudaMemsetAsync(r.count, 0, static_cast<std::size_t>(r.rows + 1) * sizeof *r.count, stream_of(context)),
        "optimizer_step");
  for (const auto kernel : {count_rows, begin_rows, gather_rows, sort_rows}) {
    launch(context, kernel, blocks(listed), kThreads, r);
  }
  if (r.means != nullptr) {
    Place<0> weights_at{};
    weights_at.weights = at.weights, weights_at.type = at.type;
    weights_at.narrow = at.narrow, weights_at.narrow_type = at.narrow_type;
    const std::int64_t count = r.width <= kWarpWidth ? blocks(listed * kWarp) : listed;
    launch(context, mean_rows, count, kThreads, r, weights_at, call);
  }
  const std::int64_t parts = (r.width + kRowChunk - 1) / kRowChunk;
  launch(context, step_rows<R, kNarrow>, blocks(listed * parts * kWarp), kThreads, r, at, call, R(s.settings));
}

}  // namespace
}  // namespace boost_ext::cuda
