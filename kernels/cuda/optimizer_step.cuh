// What the kernels of a step have in common: what they know of all tensors and of each one, and the step of a pack.
#pragma once

#include "lanes.cuh"
#include "multi_tensor.cuh"
#include "ops/optimizer_rules.h"
#include "optimizer_state.cuh"
#include "split_master.cuh"

namespace boost_ext::cuda {

constexpr int kGroups = 64;

// Settings that tensors share. A centralized tensor has a group of its own.
struct Group {
  float ratio, lr, decay;
  std::int32_t number;  // of the random bits, less the place in the list
  float* means;         // of each row, where width is not 0
  std::uint64_t width : 62;
  std::uint64_t first : 1;
  std::uint64_t codes : 1;  // step_codes() has the whole chunks

  bool operator==(const Group& o) const {
    return ratio == o.ratio && lr == o.lr && decay == o.decay && number == o.number && means == o.means &&
           width == o.width && first == o.first && codes == o.codes;
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
  std::uint64_t key;  // of the seed, and of the step if it is not in an array
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
        key(s.at->step.data != nullptr ? key_of(0, s.seed) : key_of(key_of(0, s.seed), s.settings.step)),
        decoupled(s.decoupled) {}
  BOOST_EXT_DEVICE bool skips() const { return skip.data != nullptr && *skip.data != 0; }
  BOOST_EXT_DEVICE std::uint64_t key_of_tensor(int g, std::int64_t tensor) const {
    return key_of(step != nullptr ? key_of(key, *step) : key, tensor + group[g].number);
  }
};
constexpr int kStepBytes = sizeof(StepCall) + 128;  // and the rule, and some pointers
template <int kLists, int kElements = kChunk> using StepTable = Table<kLists, kStepBytes, kElements>;

// Whether the whole chunks of a tensor are for step_codes(): float32 weights, or split ones with gradients of bfloat16,
// and all states codes, on 16 bytes.
inline bool has_codes(const OptimizerStep& s, std::int64_t t) {
  const auto at = [t](const Views& views) -> const View& { return views[static_cast<std::size_t>(t)]; };
  if (s.states == 0 || s.centralize[t]) return false;
  const View& narrow = s.narrow[t];
  const bool split = narrow.data != nullptr && is_residual(narrow);
  if (split ? s.grads[t].dtype != DType::bf16 : s.weights[t].dtype != DType::f32 || narrow.data != nullptr)
    return false;
  auto addresses = reinterpret_cast<std::uintptr_t>(s.weights[t].data) | reinterpret_cast<std::uintptr_t>(narrow.data);
  for (int k = 0; k < s.states; ++k) {
    if (at(s.state[k]).dtype != DType::u8) return false;
    addresses |= reinterpret_cast<std::uintptr_t>(at(s.state[k]).data);
  }
  return (addresses | reinterpret_cast<std::uintptr_t>(s.grads[t].data)) % 16 == 0;
}

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
                      s_.first[t] != 0,
                      has_codes(s_, t)};
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

// The rule of a step. Where the step is in an array, and the rule corrects a bias, one thread makes it for all blocks:
// powers in float64 are slow.
template <class R>
constexpr bool kCorrects = std::is_base_of_v<Adam, R> || std::is_base_of_v<AdamW, R> || std::is_same_v<Adan, R> ||
                           std::is_same_v<ScheduleFreeAdamW, R>;
template <class R> __global__ void make_rule(const StepCall __grid_constant__ call, R* rule) {
  RuleSettings settings = call.settings;
  settings.step = *call.step;
  *rule = R(settings);
}
template <class R> struct RuleAt {
  R here;
  const R* there;  // null if it is here
  BOOST_EXT_DEVICE R get() const {
    if constexpr (kCorrects<R>) {
      if (there != nullptr) return *there;
    }
    return here;
  }
};
template <class R> class RuleOfStep {
 public:
  RuleOfStep(const Context& context, const StepCall& call) : there_(context, is_there(call) ? 1 : 0), call_(call) {
    if constexpr (kCorrects<R>) {
      if (is_there(call)) launch(context, make_rule<R>, 1, 1, call, there_.get());
    }
  }
  RuleAt<R> get() const { return {R(call_.settings), is_there(call_) ? there_.get() : nullptr}; }

 private:
  static bool is_there(const StepCall& call) { return kCorrects<R> && call.step != nullptr; }
  Workspace<R> there_;
  const StepCall& call_;
};

// Where a tensor lies.
template <int kStates> struct Place {
  void* weights;
  void* narrow;  // half weights beside their float32 master, the residuals of a split one, or null
  const void* grads;
  DType type, narrow_type, grad_type;
  bool aligned;
  Stored state[kStates + 1];

  BOOST_EXT_DEVICE bool is_split() const { return narrow_type == DType::i16 || narrow_type == DType::i8; }
};

// Lists of a table: weights, narrow, grads, states, and with kNarrow the scales of these.
template <int kStates, bool kNarrow> constexpr int kListsOf = 3 + kStates * (kNarrow ? 2 : 1);
template <int kStates, bool kNarrow, int kElements>
BOOST_EXT_DEVICE Place<kStates> place_of(const StepTable<kListsOf<kStates, kNarrow>, kElements>& table,
                                         const Chunk& chunk) {
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
template <int kStates> BOOST_EXT_DEVICE Coming coming_narrow(const Place<kStates>& at, std::int64_t i, Count n) {
  return at.is_split() ? coming_residuals(at.narrow, at.narrow_type, i, n, at.aligned)
                       : coming_pack(at.narrow, at.narrow_type, i, n, at.aligned);
}
// `w` as the rule sees it, of what lies at `weights` and at `narrow`, which there is.
template <int kStates> BOOST_EXT_DEVICE void combine(const Place<kStates>& at, const Coming& narrow, Pack& w) {
  if (at.is_split()) {
    w = joined(w, residuals_of(narrow));
    return;
  }
  const Pack weight = narrow.get();
#pragma unroll
  for (int j = 0; j < kPack; ++j) w.v[j] = followed(at.narrow_type, w.v[j], weight.v[j]);
}
template <int kStates> BOOST_EXT_DEVICE Pack load_weights(const Place<kStates>& at, std::int64_t i, Count n) {
  Pack w = load_pack(at.weights, at.type, i, n, at.aligned);
  if (at.narrow != nullptr) combine(at, coming_narrow(at, i, n), w);
  return w;
}
template <int kStates> BOOST_EXT_DEVICE float load_weight(const Place<kStates>& at, std::int64_t i) {
  const float w = load(at.weights, at.type, i);
  if (at.narrow == nullptr) return w;
  if (at.is_split()) return joined(w, load_residual(at.narrow, at.narrow_type, i));
  return followed(at.narrow_type, w, load(at.narrow, at.narrow_type, i));
}
template <int kStates>
BOOST_EXT_DEVICE void store_weights(const Place<kStates>& at, std::int64_t i, Count n, const Pack& w) {
  if (at.is_split()) return store_parted(at.weights, at.narrow, at.narrow_type, i, n, at.aligned, w);
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
  if (at.narrow != nullptr) all.narrow = coming_narrow(at, i, n);
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
  if (at.narrow != nullptr) combine(at, all.narrow, w);
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

// What the codes of a state stand for with scale 1, of both kinds: a look into shared memory for seven instructions.
// All threads of a block come here.
class CodeTables {
 public:
  BOOST_EXT_DEVICE CodeTables() {
    static_assert(kThreads == 256);
    tables()[threadIdx.x] = Codes<true>::decode(threadIdx.x, 0, 1);
    tables()[kThreads + threadIdx.x] = Codes<false>::decode(threadIdx.x, 0, 1);
    __syncthreads();
  }
  // Code i of four.
  BOOST_EXT_DEVICE float decode(bool sign, unsigned codes, int i) const {
    return tables()[(sign ? 0 : kThreads) + __byte_perm(codes, 0, 0x4440 + i)];
  }

 private:
  static BOOST_EXT_DEVICE float* tables() {
    __shared__ float all[2 * kThreads];
    return all;
  }
};

// The memory of a lane: four elements, and the four 128 on. So no lanes must exchange halves of packs, since each
// access of a warp is to sectors that it needs whole.
constexpr int kQuad = kPack / 2, kApart = kWarp * kQuad;
struct Quads {
  char* begin;
  BOOST_EXT_DEVICE Quads(const void* p, std::int64_t bytes) : begin(static_cast<char*>(const_cast<void*>(p)) + bytes) {}
  BOOST_EXT_DEVICE char* at(std::uint64_t byte) const { return begin + byte; }
  BOOST_EXT_DEVICE uint2 codes(std::uint64_t byte) const {
    const char* from = at(byte);
    return make_uint2(*reinterpret_cast<const unsigned*>(from), *reinterpret_cast<const unsigned*>(from + kApart));
  }
  BOOST_EXT_DEVICE void store(std::uint64_t byte, uint2 codes) const {
    char* to = at(byte);
    *reinterpret_cast<unsigned*>(to) = codes.x;
    *reinterpret_cast<unsigned*>(to + kApart) = codes.y;
  }
  BOOST_EXT_DEVICE Raw raw(std::uint64_t byte, DType t) const {
    const char* from = at(byte);
    Raw raw{};
    if (t == DType::f32) {
      set_half(raw, 0, load_whole<uint4>(from));
      set_half(raw, 1, load_whole<uint4>(from + 4 * kApart));
    } else {
      const auto low = load_whole<uint2>(from), high = load_whole<uint2>(from + 2 * kApart);
      raw.word[0] = low.x, raw.word[1] = low.y, raw.word[2] = high.x, raw.word[3] = high.y;
    }
    return raw;
  }
  BOOST_EXT_DEVICE void store_halves(std::uint64_t byte, const Pack& x) const {
    const Raw raw = upper_halves(x);
    store_whole(at(byte), make_uint2(raw.word[0], raw.word[1]));
    store_whole(at(byte) + 2 * kApart, make_uint2(raw.word[2], raw.word[3]));
  }
  BOOST_EXT_DEVICE void store(std::uint64_t byte, const Pack& x) const {
    const Raw raw = packed(DType::f32, x);
    store_whole(at(byte), make_uint4(raw.word[0], raw.word[1], raw.word[2], raw.word[3]));
    store_whole(at(byte) + 4 * kApart, make_uint4(raw.word[4], raw.word[5], raw.word[6], raw.word[7]));
  }
};

// The weights of step_codes(): float32, or with kType i16 or i8 split ones, whose residuals are that.
template <DType kType> class CodeWeights {
 public:
  template <int kStates>
  BOOST_EXT_DEVICE CodeWeights(const Place<kStates>& at, std::int64_t mine)
      : weights_(at.weights, kBytes * mine), residuals_(kSplit ? at.narrow : at.weights, kOfResidual * mine) {}
  struct Coming {
    Raw weights, residuals;
    BOOST_EXT_DEVICE Pack get() const {
      if constexpr (kSplit) {
        const Pack x = kType == DType::i8 ? residuals_of_bytes(residuals) : unpacked(residuals, DType::bf16);
        return joined(unpacked(weights, DType::bf16), x);
      } else {
        return unpacked(weights, DType::f32);
      }
    }
  };
  BOOST_EXT_DEVICE Coming coming(std::uint64_t done) const {
    Coming all{weights_.raw(kBytes * done, kSplit ? DType::bf16 : DType::f32), {}};
    if constexpr (kType == DType::i16) all.residuals = residuals_.raw(kOfResidual * done, DType::bf16);
    if constexpr (kType == DType::i8) {
      const uint2 bytes = residuals_.codes(done);
      all.residuals.word[0] = bytes.x, all.residuals.word[1] = bytes.y;
    }
    return all;
  }
  BOOST_EXT_DEVICE void store(std::uint64_t done, const Pack& w) const {
    if constexpr (!kSplit) {
      weights_.store(kBytes * done, w);
    } else {
      const Parted parts = parted(w, kType);
      weights_.store_halves(kBytes * done, parts.weights);
      if constexpr (kType == DType::i16)
        residuals_.store_halves(kOfResidual * done, parts.residuals);
      else
        residuals_.store(done, bytes_of_residuals(parts.residuals));
    }
  }

 private:
  static constexpr bool kSplit = kType != DType::f32;
  static constexpr int kBytes = kSplit ? 2 : 4, kOfResidual = kType == DType::i16 ? 2 : 1;
  Quads weights_, residuals_;
};

template <class R, class = void> constexpr bool kHasNesterov = false;
template <class R> constexpr bool kHasNesterov<R, std::void_t<decltype(std::declval<R&>().nesterov)>> = true;
template <class R, class = void> constexpr bool kHasMoments = false;
template <class R> constexpr bool kHasMoments<R, std::void_t<decltype(std::declval<R&>().second)>> = true;

// The step of `whole` elements from `begin` on, states of codes and weights of kType. A moment is only ever multiplied
// with its decay, and its scale is a power of two: kScaled has one product for both.
template <bool kScaled, DType kType, class R, class GradType>
BOOST_EXT_DEVICE void step_codes(const R& rule, const Ready& ready, const Place<R::kStates>& at, std::int64_t begin,
                                 int whole, std::uint64_t key, GradType grad_type) {
  constexpr int kStates = R::kStates, kRound = kThreads * kPack, kGrad = GradType::value == DType::f32 ? 4 : 2;
  const CodeTables tables;
  const std::int64_t mine = begin + static_cast<int>(threadIdx.x) / kWarp * static_cast<int>(kStateBlock) +
                            static_cast<int>(threadIdx.x) % kWarp * kQuad;
  const CodeWeights<kType> weights(at, mine);
  const Quads grads(at.grads, kGrad * mine);
  const Quads codes[] = {{at.state[0].data, mine}, {at.state[kStates - 1].data, mine}};
  float* const scales[] = {at.state[0].scales + mine / kStateBlock, at.state[kStates - 1].scales + mine / kStateBlock};
#pragma unroll 1
  for (unsigned done = 0; done < static_cast<unsigned>(whole); done += kRound) {
    const auto coming = weights.coming(done);
    const Raw raw_grads = grads.raw(std::uint64_t{kGrad} * done, grad_type);
    uint2 coded[kStates];
    float scale[kStates];
#pragma unroll
    for (int k = 0; k < kStates; ++k) {
      coded[k] = codes[k].codes(done), scale[k] = scales[k][done / static_cast<unsigned>(kStateBlock)];
    }
    R scaled = rule;
    if constexpr (kScaled) scaled.first.keep *= scale[0], scaled.second.keep *= scale[kStates - 1];
    const Hash low(key, mine + done), high(key, mine + done + kApart);
    Random random;
    low.begin(random);
    Pack w = coming.get(), state[kStates];
    const Pack u = unpacked(raw_grads, grad_type);
#pragma unroll
    for (int j = 0; j < kPack; ++j) {
      random.hash[j] = j < kQuad ? low(j) : high(j - kQuad);
      F s[kStates];
#pragma unroll
      for (int k = 0; k < kStates; ++k) {
        s[k] = tables.decode(k != kNonNegative, j < kQuad ? coded[k].x : coded[k].y, j % kQuad);
        if constexpr (!kScaled) s[k] = scale[k] * s[k];
      }
      w.v[j] = scaled(ready.of, w.v[j], ready.scale * u.v[j] + ready.l2 * w.v[j], s);
#pragma unroll
      for (int k = 0; k < kStates; ++k) state[k].v[j] = s[k];
    }
#pragma unroll
    for (int k = 0; k < kStates; ++k) {
      const bool sign = k != kNonNegative;
      const BlockScale by(
          __reduce_max_sync(kWholeWarp, sign ? largest_bits<true>(state[k]) : largest_bits<false>(state[k])));
      codes[k].store(done, sign ? encoded<true>(state[k], by, random, k) : encoded<false>(state[k], by, random, k));
      if (threadIdx.x % kWarp == 0) scales[k][done / static_cast<unsigned>(kStateBlock)] = by.scale;
    }
    weights.store(done, w);
  }
}
// With Nesterov's momentum, or without it, so that nobody asks an element which.
template <DType kType, class R, class GradType>
BOOST_EXT_DEVICE void step_codes_of(R rule, const Ready& ready, const Place<R::kStates>& at, std::int64_t begin,
                                    int whole, std::uint64_t key, GradType grad_type) {
  if constexpr (kHasNesterov<R>) {
    if (rule.nesterov) {
      rule.nesterov = true;
      return step_codes<false, kType>(rule, ready, at, begin, whole, key, grad_type);
    }
    rule.nesterov = false;
  }
  step_codes<kHasMoments<R>, kType>(rule, ready, at, begin, whole, key, grad_type);
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
