// What the kernels of a step have in common: what they know of all tensors and of each one, and the step of a pack.
#pragma once

#include "lanes.cuh"
#include "multi_tensor.cuh"
#include "ops/optimizer_rules.h"
#include "optimizer_state.cuh"

namespace boost_ext::cuda {

constexpr int kGroups = 64;

// Settings that tensors share. A centralized tensor has a group of its own.
struct Group {
  float ratio, lr, decay;
  std::int32_t number;  // of the random bits, less the place in the list
  float* means;         // of each row, where width is not 0
  std::uint64_t width : 63;
  std::uint64_t first : 1;

  bool operator==(const Group& o) const {
    return ratio == o.ratio && lr == o.lr && decay == o.decay && number == o.number && means == o.means &&
           width == o.width && first == o.first;
  }
};

// Numbers in an array: one for all tensors, or one a tensor; none if `data` is null.
struct Listed {
  const float* data = nullptr;
  int stride = 0;
  Listed() = default;
  explicit Listed(const View& v) : data(static_cast<const float*>(v.data)), stride(v.size > 1 ? 1 : 0) {}
  BOOST_EXT_DEVICE float get(std::int64_t tensor, float otherwise) const {
    return data != nullptr ? data[tensor * stride] : otherwise;
  }
};

// What a launch knows of all its tensors.
struct StepCall {
  RuleSettings settings;
  const std::int32_t* step;  // instead of the one in there
  double scale;
  Listed scale_at, lr, decay, ratio, skip;
  std::uint64_t key;  // of the seed
  bool decoupled;
  Group group[kGroups];

  explicit StepCall(const OptimizerStep& s)
      : settings(s.settings),
        step(static_cast<const std::int32_t*>(s.at->step.data)),
        scale(s.scale_of_all),
        scale_at(s.at->scale),
        lr(s.at->lr),
        decay(s.at->decay),
        ratio(s.at->ratio),
        skip(s.at->skip),
        key(key_of(0, s.seed)),
        decoupled(s.decoupled) {}
  BOOST_EXT_DEVICE bool skips() const { return skip.data != nullptr && *skip.data != 0; }
  BOOST_EXT_DEVICE std::uint64_t key_of_tensor(int g, std::int64_t tensor) const {
    return key_of(key_of(key, step != nullptr ? *step : settings.step), tensor + group[g].number);
  }
};
constexpr int kStepBytes = sizeof(StepCall) + 128;  // and the rule, and some pointers
template <int kLists> using StepTable = Table<kLists, kStepBytes>;

// The groups of the tensors of a launch.
class Groups {
 public:
  Groups(const OptimizerStep& s, StepCall& call) : s_(s), call_(call), first_row_(s.weights.count) {
    for (std::int64_t t = 0; t < s.weights.count; ++t) {
      first_row_[t] = rows_;
      if (s.centralize[t] && s.weights[t].size > 0) rows_ += s.weights[t].rows;
    }
  }
  std::int64_t rows() const { return rows_; }  // of all centralized tensors
  void set_means(float* means) { means_ = means; }
  void clear() { count_ = 0; }
  // -1 if there is no room for one more.
  int of(std::int64_t t) {
    const auto i = static_cast<std::size_t>(t);
    const bool centralized = s_.centralize[t] && s_.weights[t].size > 0;
    const std::int64_t number = s_.numbers->empty() ? t : (*s_.numbers)[i];
    const Group group{s_.ratio[t],
                      s_.lr[t],
                      s_.decay[t],
                      static_cast<std::int32_t>(number - t),
                      centralized ? means_ + first_row_[i] : nullptr,
                      static_cast<std::uint64_t>(centralized ? s_.weights[t].size / s_.weights[t].rows : 0),
                      s_.first[t] != 0};
    for (int g = 0; g < count_; ++g) {
      if (call_.group[g] == group) return g;
    }
    if (count_ == kGroups) return -1;
    call_.group[count_] = group;
    return count_++;
  }

 private:
  const OptimizerStep& s_;
  StepCall& call_;
  std::vector<std::int64_t> first_row_;
  std::int64_t rows_ = 0;
  float* means_ = nullptr;
  int count_ = 0;
};

// What makes the ready gradient of a tensor, and what the rule asks.
struct Ready {
  float scale, l2;
  OfTensor of;

  BOOST_EXT_DEVICE Ready(const StepCall& call, int g, std::int64_t tensor) {
    const Group& group = call.group[g];
    const double all = call.scale_at.data != nullptr ? static_cast<double>(*call.scale_at.data) : call.scale;
    scale = static_cast<float>(all * static_cast<double>(call.ratio.get(tensor, group.ratio)));
    of.lr = call.lr.get(tensor, group.lr);
    of.decay = call.decay.get(tensor, group.decay);
    of.first = group.first != 0;
    l2 = call.decoupled ? 0.0F : of.decay;
  }
};

// The rule of this step. Where the step is in an array, one thread of the block makes it: powers in float64 are slow.
template <class R> BOOST_EXT_DEVICE R rule_of(const StepCall& call, const R& rule) {
  if constexpr (std::is_empty_v<R>) return rule;
  if (call.step == nullptr) return rule;
  constexpr int kWords = (sizeof(R) + 3) / 4;
  __shared__ unsigned words[kWords];  // with the gaps between its members, which have no value of their own
  unsigned mine[kWords] = {};
  R made = rule;
  if (threadIdx.x == 0) {
    RuleSettings settings = call.settings;
    settings.step = *call.step;
    made = R(settings);
    memcpy(mine, &made, sizeof made);
    for (int i = 0; i < kWords; ++i) words[i] = mine[i];
  }
  __syncthreads();
  for (int i = 0; i < kWords; ++i) mine[i] = words[i];
  memcpy(&made, mine, sizeof made);
  return made;
}

// Where a tensor lies.
template <int kStates> struct Place {
  void* weights;
  void* narrow;  // half weights beside their master, or null
  const void* grads;
  DType type, narrow_type, grad_type;
  bool aligned;
  Stored state[kStates + 1];
};

// Lists of a table: weights, narrow, grads, states, and with kNarrow the scales of these.
template <int kStates, bool kNarrow> constexpr int kListsOf = 3 + kStates * (kNarrow ? 2 : 1);
template <int kStates, bool kNarrow>
BOOST_EXT_DEVICE Place<kStates> place_of(const StepTable<kListsOf<kStates, kNarrow>>& table, const Chunk& chunk) {
  const int t = chunk.t;
  Place<kStates> at;
  at.weights = table.data[0][t], at.narrow = table.data[1][t], at.grads = table.data[2][t];
  at.type = table.type(0, t), at.narrow_type = table.type(1, t), at.grad_type = table.type(2, t);
  at.aligned = chunk.aligned;
#pragma unroll
  for (int k = 0; k < kStates; ++k) {
    void* scales = nullptr;
    if constexpr (kNarrow) scales = table.data[3 + kStates + k][t];
    at.state[k] = {table.data[3 + k][t], static_cast<float*>(scales), kNarrow ? table.type(3 + k, t) : DType::f32};
  }
  return at;
}

// A weight that is no longer what its master rounds to was set by somebody else, and the master follows.
BOOST_EXT_DEVICE float followed(DType type, float master, float weight) {
  return rounded(type, master) == weight ? master : weight;
}
template <int kStates> BOOST_EXT_DEVICE void follow(const Place<kStates>& at, std::int64_t i, Count n, Pack& w) {
  if (at.narrow == nullptr) return;
  const Pack weight = load_pack(at.narrow, at.narrow_type, i, n, at.aligned);
#pragma unroll
  for (int j = 0; j < kPack; ++j) w.v[j] = followed(at.narrow_type, w.v[j], weight.v[j]);
}
template <int kStates>
BOOST_EXT_DEVICE void store_weights(const Place<kStates>& at, std::int64_t i, Count n, const Pack& w) {
  store_pack(at.weights, at.type, i, n, at.aligned, w);
  if (at.narrow != nullptr) store_pack(at.narrow, at.narrow_type, i, n, at.aligned, w);
}

// The rows of a chunk of a centralized tensor: division happens here, and only with 32 bits for each pack.
struct RowsOfChunk {
  const float* means = nullptr;  // of the row in which the chunk begins
  std::int64_t before = 0;       // elements of this row before the chunk
  std::int64_t width;

  BOOST_EXT_DEVICE RowsOfChunk(const Group& group, std::int64_t begin) : width(static_cast<std::int64_t>(group.width)) {
    if (width == 0) return;
    const std::uint64_t row = static_cast<std::uint64_t>(begin) / group.width;
    means = group.means + row;
    before = begin - static_cast<std::int64_t>(row) * width;
  }
  // From n elements, which begin `at` elements after the chunk does, the means of their rows.
  BOOST_EXT_DEVICE void center(int at, int n, Pack& u) const {
    if (width == 0) return;
    const std::int64_t i = before + at;
    std::int64_t row = i >= width ? 1 : 0;
    if (width < (1 << 30)) row = static_cast<unsigned>(i) / static_cast<unsigned>(width);
    std::int64_t left = (row + 1) * width - i;
#pragma unroll
    for (int j = 0; j < kPack; ++j) {
      if (left == 0) {
        ++row;
        left = width;
      }
      --left;
      if (j < n) u.v[j] = u.v[j] - means[row];
    }
  }
};

// What a pack of a tensor is stepped from, on its way: all reads begin before the first conversion.
template <int kStates> struct StepComing {
  Coming weights, narrow, state[kStates + 1];
};
template <int kStates, bool kNarrow>
BOOST_EXT_DEVICE StepComing<kStates> coming_of(const Place<kStates>& at, std::int64_t i, Count n) {
  StepComing<kStates> all;
  all.weights = coming_pack(at.weights, at.type, i, n, at.aligned);
#pragma unroll
  for (int k = 0; k < kStates; ++k) {
    if constexpr (kNarrow)
      all.state[k] = coming_state(at.state[k], i, n, at.aligned);
    else
      all.state[k] = coming_pack(at.state[k].data, DType::f32, i, n, at.aligned);
  }
  if (at.narrow != nullptr) all.narrow = coming_pack(at.narrow, at.narrow_type, i, n, at.aligned);
  return all;
}
template <int kStates, bool kNarrow>
BOOST_EXT_DEVICE void arrive(const Place<kStates>& at, const StepComing<kStates>& all, int n, Pack& w,
                             Pack (&state)[kStates + 1]) {
  w = all.weights.get();
#pragma unroll
  for (int k = 0; k < kStates; ++k) {
    if constexpr (!kNarrow)
      state[k] = all.state[k].get();
    else if (k == kNonNegative)
      state[k] = state_of<false>(all.state[k], n);
    else
      state[k] = state_of<true>(all.state[k], n);
  }
  if (at.narrow == nullptr) return;
  const Pack weight = all.narrow.get();
#pragma unroll
  for (int j = 0; j < kPack; ++j) w.v[j] = followed(at.narrow_type, w.v[j], weight.v[j]);
}
template <int kStates, bool kNarrow>
BOOST_EXT_DEVICE void store_states(const Place<kStates>& at, std::int64_t i, Count n, const Random& random,
                                   Pack (&state)[kStates + 1]) {
#pragma unroll
  for (int k = 0; k < kStates; ++k) {
    if constexpr (!kNarrow)
      store_pack(at.state[k].data, DType::f32, i, n, at.aligned, state[k]);
    else if (k == kNonNegative)
      store_state<false>(at.state[k], i, n, at.aligned, random, k, state[k]);
    else
      store_state<true>(at.state[k], i, n, at.aligned, random, k, state[k]);
  }
}

// One step of n elements from i on, on the gradients that gradient()() gives: gradient() begins to read them. center(u)
// centers them; `random` is for kNarrow.
template <bool kNarrow, class R, class Gradient, class Center>
BOOST_EXT_DEVICE void step_pack(const R& rule, const Ready& ready, const Place<R::kStates>& at, std::int64_t i, Count n,
                                Gradient gradient, Center center, const Random& random) {
  const StepComing<R::kStates> all = coming_of<R::kStates, kNarrow>(at, i, n);
  const auto coming = gradient();
  Pack w, state[R::kStates + 1];
  arrive<R::kStates, kNarrow>(at, all, n, w, state);
  Pack u = coming();
#pragma unroll
  for (int j = 0; j < kPack; ++j) u.v[j] = ready.scale * u.v[j] + ready.l2 * w.v[j];
  center(u);
#pragma unroll
  for (int j = 0; j < kPack; ++j) {
    F s[R::kStates + 1];
#pragma unroll
    for (int k = 0; k < R::kStates; ++k) s[k] = state[k].v[j];
    w.v[j] = rule(ready.of, w.v[j], u.v[j], s);
#pragma unroll
    for (int k = 0; k < R::kStates; ++k) state[k].v[j] = s[k];
  }
  store_states<R::kStates, kNarrow>(at, i, n, random, state);
  store_weights(at, i, n, w);
}

// Of ready gradients, as a unit of the sum of a row that is as many packs.
BOOST_EXT_DEVICE double sum_of_pack(const Ready& ready, const Pack& grad, const Pack& w) {
  double sum = 0;
#pragma unroll
  for (int j = 0; j < kPack; ++j) sum += static_cast<double>(ready.scale * grad.v[j] + ready.l2 * w.v[j]);
  return sum;
}

// Pack j of the `packs` of a row, of which the lanes of a warp have one beside the other.
BOOST_EXT_DEVICE Count unit_of_row(std::int64_t j, std::int64_t packs) {
  return {kPack, j - static_cast<int>(threadIdx.x) % kWarp + kWarp <= packs};
}

// The sum of value(j) for j < width, over a warp, each of whose threads gets it. Wider rows than kWarpWidth are for
// sum_in_block.
constexpr std::int64_t kWarpWidth = 2048;
template <class Value> BOOST_EXT_DEVICE double sum_in_warp(std::int64_t width, Value value) {
  double sum = 0;
  for (std::int64_t j = threadIdx.x % kWarp; j < width; j += kWarp) sum += static_cast<double>(value(j));
#pragma unroll
  for (int other = kWarp / 2; other > 0; other /= 2) sum += __shfl_xor_sync(kWholeWarp, sum, other);
  return sum;
}

}  // namespace boost_ext::cuda
