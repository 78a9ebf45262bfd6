// See ops/optimizer_step.h.
#include "ops/optimizer_step.h"
#include "optimizer_rows.cuh"
#include "optimizer_step.cuh"

namespace boost_ext::cuda {
namespace {

// How many rows begin before element i.
BOOST_EXT_DEVICE std::int64_t rows_before(std::int64_t i, std::int64_t width) {
  const auto divisor = static_cast<std::uint64_t>(width);
  return static_cast<std::int64_t>((static_cast<std::uint64_t>(i) + divisor - 1) / divisor);
}

// The means of the ready gradients of the rows that begin in this chunk.
__global__ void __launch_bounds__(kThreads)
    mean_blocks(const StepTable<3> __grid_constant__ table, const StepCall __grid_constant__ call) {
  if (call.skips()) return;
  const Chunk chunk = chunk_of(table, blockIdx.x);
  const Place<0> at = place_of<0, false>(table, chunk);
  const int g = table.group[chunk.t];
  const Ready ready(call, g, table.tensor + chunk.t);
  const auto width = static_cast<std::int64_t>(call.group[g].width);
  float* means = call.group[g].means;
  const std::int64_t end = rows_before(chunk.begin + chunk.count, width);
  const auto value = [&](std::int64_t i) {
    const float grad = load(at.grads, at.grad_type, i);
    const float w = ready.l2 != 0 ? load_weight(at, i) : grad;
    return ready.scale * grad + ready.l2 * w;
  };
  const auto pack = [&](std::int64_t i, Count n) {
    const Pack grad = load_pack(at.grads, at.grad_type, i, n, at.aligned);
    if (ready.l2 == 0) return sum_of_pack(ready, grad, grad);
    return sum_of_pack(ready, grad, load_weights(at, i, n));
  };
  const bool warps = width <= kWarpWidth, packs = width % kPack == 0;
  std::int64_t row = rows_before(chunk.begin, width);
  for (row += warps ? threadIdx.x / kWarp : 0; row < end; row += warps ? kThreads / kWarp : 1) {
    const auto of_row = [&](std::int64_t j) {
      return packs ? pack(row * width + j * kPack, unit_of_row(j, width / kPack))
                   : static_cast<double>(value(row * width + j));
    };
    const std::int64_t units = packs ? width / kPack : width;
    const double sum = warps ? sum_in_warp(units, of_row) : sum_in_block(units, of_row);
    if (warps ? threadIdx.x % kWarp == 0 : threadIdx.x == 0) {
      means[row] = static_cast<float>(sum / static_cast<double>(width));
    }
  }
}

// So that enough reads are on their way, where registers allow it.
template <class R, bool kNarrow> constexpr int kBlocksAtOnce = kNarrow || R::kStates >= 3 ? 2 : 3;
template <> constexpr int kBlocksAtOnce<Ftrl, false> = 2;

template <class R, bool kNarrow, int kElements = kChunk>
using TableOf = StepTable<kListsOf<R::kStates, kNarrow>, kElements>;
// What a block of codes begins with, the key of its random bits above all, is worth many elements.
constexpr int kCodeChunk = 8 * kChunk;

// A kernel of its own, which asks for fewer registers than the other one.
template <class R>
__global__ void __launch_bounds__(kThreads, R::kStates == 1 ? 4 : 2)
    step_code_blocks(const TableOf<R, true, kCodeChunk> __grid_constant__ table, const StepCall __grid_constant__ call,
                     const RuleAt<R> made) {
  if (call.skips()) return;
  const Chunk chunk = chunk_of(table, blockIdx.x);
  const Place<R::kStates> at = place_of<R::kStates, true>(table, chunk);
  const int g = table.group[chunk.t], count = chunk.count / kChunk * kChunk;
  if (call.group[g].codes == 0 || count == 0) return;
  const R rule = made.get();
  const Ready ready(call, g, table.tensor + chunk.t);
  const std::uint64_t key = call.key_of_tensor(g, table.tensor + chunk.t);
  if (at.narrow_type == DType::i16)
    step_codes_of<DType::i16>(rule, ready, at, chunk.begin, count, key, TypeOf<DType::bf16>());
  else if (at.narrow_type == DType::i8)
    step_codes_of<DType::i8>(rule, ready, at, chunk.begin, count, key, TypeOf<DType::bf16>());
  else if (at.grad_type == DType::f32)
    step_codes_of<DType::f32>(rule, ready, at, chunk.begin, count, key, TypeOf<DType::f32>());
  else if (at.grad_type == DType::f16)
    step_codes_of<DType::f32>(rule, ready, at, chunk.begin, count, key, TypeOf<DType::f16>());
  else
    step_codes_of<DType::f32>(rule, ready, at, chunk.begin, count, key, TypeOf<DType::bf16>());
}

// All but what step_code_blocks() has done.
template <class R, bool kNarrow>
__global__ void __launch_bounds__(kThreads, (kBlocksAtOnce<R, kNarrow>))
    step_blocks(const TableOf<R, kNarrow> __grid_constant__ table, const StepCall __grid_constant__ call,
                const RuleAt<R> made) {
  if (call.skips()) return;
  const Chunk chunk = chunk_of(table, blockIdx.x);
  const int g = table.group[chunk.t];
  if (kNarrow && call.group[g].codes != 0 && chunk.count == kChunk) return;
  const Place<R::kStates> at = place_of<R::kStates, kNarrow>(table, chunk);
  const R rule = made.get();
  const Ready ready(call, g, table.tensor + chunk.t);
  const RowsOfChunk rows(call.group[g], chunk.begin);
  const std::uint64_t key = kNarrow ? call.key_of_tensor(g, table.tensor + chunk.t) : 0;
  each_pack<kNarrow>(chunk, [&](std::int64_t i, Count n) {
    Random random;
    if constexpr (kNarrow) random = random_bits(key, i);
    step_pack<kNarrow>(
        rule, ready, at, i, n,
        [&] {
          const Coming coming = coming_pack(at.grads, at.grad_type, i, n, at.aligned);
          return [coming] { return coming.get(); };
        },
        [&](Pack& u) { rows.center(static_cast<int>(i - chunk.begin), n, u); }, random);
  });
}

// Lamb: moments and norms, then the ratio of these, then weights. The sweeps see the moments as they are stored.
struct Norms {
  double weights, direction;
};
BOOST_EXT_DEVICE Norms add(const Norms& a, const Norms& b) {
  return {a.weights + b.weights, a.direction + b.direction};
}

template <bool kNarrow>
__global__ void __launch_bounds__(kThreads)
    lamb_moments(const StepTable<kListsOf<2, kNarrow>> __grid_constant__ table, const StepCall __grid_constant__ call,
                 const RuleAt<Lamb> made, Norms* partial) {
  if (call.skips()) return;
  const Lamb rule = made.get();
  const Chunk chunk = chunk_of(table, blockIdx.x);
  const Place<2> at = place_of<2, kNarrow>(table, chunk);
  const int g = table.group[chunk.t];
  const Ready ready(call, g, table.tensor + chunk.t);
  const RowsOfChunk rows(call.group[g], chunk.begin);
  const std::uint64_t key = kNarrow ? call.key_of_tensor(g, table.tensor + chunk.t) : 0;
  Norms squares{0, 0};
  each_pack<kNarrow>(chunk, [&](std::int64_t i, Count n) {
    Random random;
    if constexpr (kNarrow) random = random_bits(key, i);
    const StepComing<2> all = coming_of<2, kNarrow>(at, i, n);
    const Coming grads = coming_pack(at.grads, at.grad_type, i, n, at.aligned);
    Pack w, state[3];
    arrive<2, kNarrow>(at, all, n, w, state);
    Pack u = grads.get();
#pragma unroll
    for (int j = 0; j < kPack; ++j) u.v[j] = ready.scale * u.v[j] + ready.l2 * w.v[j];
    rows.center(static_cast<int>(i - chunk.begin), n, u);
#pragma unroll
    for (int j = 0; j < kPack; ++j) {
      F mv[2] = {state[0].v[j], state[1].v[j]};
      rule.moments(u.v[j], mv);
      state[0].v[j] = mv[0], state[1].v[j] = mv[1];
    }
    store_states<2, kNarrow>(at, i, n, random, state);
#pragma unroll
    for (int j = 0; j < kPack; ++j) {
      if (j >= n) continue;
      const F mv[2] = {state[0].v[j], state[1].v[j]};
      const auto wide = static_cast<double>(w.v[j]), r = static_cast<double>(rule.direction(ready.of, w.v[j], mv));
      squares.weights += wide * wide;
      squares.direction += r * r;
    }
  });
  squares = reduce_block(squares, add);
  if (threadIdx.x == 0) partial[table.block + blockIdx.x] = squares;
}

// One block a tensor: |w| / |r|.
template <bool kNarrow>
__global__ void lamb_ratios(const StepTable<kListsOf<2, kNarrow>> __grid_constant__ table, const Norms* partial,
                            float* ratios) {
  const int t = static_cast<int>(blockIdx.x);
  const Norms sum = combine_partials(table, t, partial, Norms{0, 0}, add);
  if (threadIdx.x != 0) return;
  const bool ratio = sum.weights > 0 && sum.direction > 0;
  ratios[table.tensor + t] = ratio ? static_cast<float>(square_root(sum.weights) / square_root(sum.direction)) : 1.0F;
}

template <bool kNarrow>
__global__ void __launch_bounds__(kThreads)
    lamb_weights(const StepTable<kListsOf<2, kNarrow>> __grid_constant__ table, const StepCall __grid_constant__ call,
                 const RuleAt<Lamb> made, const float* ratios) {
  if (call.skips()) return;
  const Lamb rule = made.get();
  const Chunk chunk = chunk_of(table, blockIdx.x);
  const Place<2> at = place_of<2, kNarrow>(table, chunk);
  const std::int64_t tensor = table.tensor + chunk.t;
  const Ready ready(call, table.group[chunk.t], tensor);
  const float rate = ready.of.lr * ratios[tensor];
  each_pack<kNarrow>(chunk, [&](std::int64_t i, Count n) {
    Pack w, state[3];
    arrive<2, kNarrow>(at, coming_of<2, kNarrow>(at, i, n), n, w, state);
#pragma unroll
    for (int j = 0; j < kPack; ++j) {
      const F mv[2] = {state[0].v[j], state[1].v[j]};
      w.v[j] = w.v[j] - rate * rule.direction(ready.of, w.v[j], mv);
    }
    store_weights(at, i, n, w);
  });
}

bool any_state(const OptimizerStep& s, bool (*is)(DType)) {
  for (int k = 0; k < s.states; ++k) {
    for (const View& v : s.state[k]) {
      if (is(v.dtype)) return true;
    }
  }
  return false;
}
bool any_narrow(const OptimizerStep& s) {
  return any_state(s, [](DType t) { return t != DType::f32; });
}

// The list at this place of a table; `none` for scales that no state has.
Tensors list_of(const OptimizerStep& s, const Views& none, int place) {
  if (place == 0) return s.weights;
  if (place == 1) return s.narrow;
  if (place == 2) return s.grads;
  if (place < 3 + s.states) return s.state[place - 3];
  return any_state(s, [](DType t) { return t == DType::u8; }) ? Tensors(s.scales[place - 3 - s.states]) : Tensors(none);
}

// launch_one(table) for all tensors.
template <int kLists, int kElements = kChunk, class LaunchOne, std::size_t... kPlaces>
void each_table(const OptimizerStep& s, Groups& groups, LaunchOne launch_one, std::index_sequence<kPlaces...>) {
  const Views none(static_cast<std::size_t>(s.weights.count));
  groups.clear();
  each_launch<kLists, kStepBytes, kElements>(
      {list_of(s, none, static_cast<int>(kPlaces))...},
      [&](const StepTable<kLists, kElements>& table) {
        launch_one(table);
        groups.clear();
      },
      [&](std::int64_t t) { return groups.of(t); });
}

void find_means(const Context& context, const OptimizerStep& s, const StepCall& call, Groups& groups) {
  if (groups.rows() == 0) return;
  Views centralized(s.weights.data, s.weights.data + s.weights.count);
  for (std::int64_t t = 0; t < s.weights.count; ++t) {
    if (!s.centralize[t]) centralized[static_cast<std::size_t>(t)].size = 0;
  }
  OptimizerStep some = s;
  some.weights = centralized;
  some.states = 0;
  each_table<3>(
      some, groups,
      [&](const StepTable<3>& table) { launch(context, mean_blocks, table.blocks(), kThreads, table, call); },
      std::make_index_sequence<3>());
}

template <class R, bool kNarrow> void step_tensors(const Context& context, const OptimizerStep& s) {
  constexpr int kLists = kListsOf<R::kStates, kNarrow>;
  StepCall call(s);
  Groups groups(s, call);
  const Workspace<float> means(context, groups.rows());
  groups.set_means(means.get());
  find_means(context, s, call, groups);
  const RuleOfStep<R> rule(context, call);
  OptimizerStep rest = s;  // but for tensors that have whole chunks of codes alone
  Views weights(s.weights.data, s.weights.data + s.weights.count);
  if constexpr (kNarrow) {
    bool any = false;
    for (std::int64_t t = 0; t < s.weights.count; ++t) {
      View& v = weights[static_cast<std::size_t>(t)];
      if (!has_codes(s, t)) continue;
      any = any || v.size >= kChunk;
      if (v.size % kChunk == 0) v.size = 0;
    }
    if (any) {
      each_table<kLists, kCodeChunk>(
          s, groups,
          [&](const TableOf<R, true, kCodeChunk>& table) {
            launch(context, step_code_blocks<R>, table.blocks(), kThreads, table, call, rule.get());
          },
          std::make_index_sequence<kLists>());
    }
    rest.weights = weights;
  }
  each_table<kLists>(
      rest, groups,
      [&](const TableOf<R, kNarrow>& table) {
        launch(context, step_blocks<R, kNarrow>, table.blocks(), kThreads, table, call, rule.get());
      },
      std::make_index_sequence<kLists>());
}

template <bool kNarrow> void step_lamb(const Context& context, const OptimizerStep& s) {
  constexpr int kLists = kListsOf<2, kNarrow>;
  StepCall call(s);
  Groups groups(s, call);
  const Workspace<float> means(context, groups.rows()), ratios(context, s.weights.count);
  const Workspace<Norms> partial(context, blocks_of(s.weights));
  groups.set_means(means.get());
  find_means(context, s, call, groups);
  const RuleOfStep<Lamb> rule(context, call);
  each_table<kLists>(
      s, groups,
      [&](const StepTable<kLists>& table) {
        launch(context, lamb_moments<kNarrow>, table.blocks(), kThreads, table, call, rule.get(), partial.get());
        launch(context, lamb_ratios<kNarrow>, table.count, kThreads, table, partial.get(), ratios.get());
        launch(context, lamb_weights<kNarrow>, table.blocks(), kThreads, table, call, rule.get(), ratios.get());
      },
      std::make_index_sequence<kLists>());
}

template <class R> constexpr bool kMayBeNarrow = false;
template <> constexpr bool kMayBeNarrow<Momentum> = true;
template <> constexpr bool kMayBeNarrow<Adam> = true;
template <> constexpr bool kMayBeNarrow<AdamWeightDecay> = true;
template <> constexpr bool kMayBeNarrow<AdamW> = true;
template <> constexpr bool kMayBeNarrow<Lion> = true;
template <> constexpr bool kMayBeNarrow<NAdamW> = true;

template <class R> struct Type {
  using type = R;
};
// body(Type<R>) for the rule of this name, but for lamb.
template <class Body> void with_rule(Rule rule, int states, Body body) {
  switch (rule) {
    case Rule::sgd:
      return states == 0 ? body(Type<PlainSgd>()) : body(Type<Sgd>());
    case Rule::momentum:
      return body(Type<Momentum>());
    case Rule::adam:
      return states == 2 ? body(Type<Adam>()) : body(Type<AmsGrad>());
    case Rule::adam_weight_decay:
      return body(Type<AdamWeightDecay>());
    case Rule::adamw:
      return body(Type<AdamW>());
    case Rule::lamb:
      return;
    case Rule::lion:
      return body(Type<Lion>());
    case Rule::nadamw:
      return body(Type<NAdamW>());
    case Rule::ademamix:
      return body(Type<AdEmaMix>());
    case Rule::adan:
      return body(Type<Adan>());
    case Rule::schedule_free_sgd:
      return body(Type<ScheduleFreeSgd>());
    case Rule::schedule_free_adamw:
      return body(Type<ScheduleFreeAdamW>());
    case Rule::adagrad:
      return body(Type<Adagrad>());
    case Rule::proximal_adagrad:
      return body(Type<ProximalAdagrad>());
    case Rule::rmsprop:
      return body(Type<RmsProp>());
    case Rule::centered_rmsprop:
      return body(Type<CenteredRmsProp>());
    case Rule::ftrl:
      return body(Type<Ftrl>());
  }
}

}  // namespace

void optimizer_step(const Context& context, Rule rule, const OptimizerStep& s) {
  const OnDevice device(context);
  const bool narrow = any_narrow(s);
  if (rule == Rule::lamb) return narrow ? step_lamb<true>(context, s) : step_lamb<false>(context, s);
  with_rule(rule, s.states, [&](auto type) {
    using R = typename decltype(type)::type;
    if constexpr (kMayBeNarrow<R>) {
      if (narrow) return step_tensors<R, true>(context, s);
    }
    step_tensors<R, false>(context, s);
  });
}

void optimizer_step_rows(const Context& context, Rule rule, const OptimizerStep& s, const View& indices,
                         const View& values) {
  const OnDevice device(context);
  const bool narrow = any_narrow(s);
  with_rule(rule, s.states, [&](auto type) {
    using R = typename decltype(type)::type;
    if constexpr (kMayBeNarrow<R>) {
      if (narrow) return step_listed<R, true>(context, s, indices, values);
    }
    step_listed<R, false>(context, s, indices, values);
  });
}

}  // namespace boost_ext::cuda
