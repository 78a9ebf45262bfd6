#include "ops/optimizer_step.h"

#include "cpu/chunks.h"
#include "cpu/optimizer_state.h"
#include "cpu/parallel.h"
#include "cpu/wide_weights.h"
#include "ops/optimizer_rules.h"

namespace boost_ext::cpu::BOOST_EXT_ISA {
namespace {

constexpr std::int64_t kBlock = 4096;  // where squares are summed

// The mean of the ready gradients of one row, whose weights take over what was set from outside.
float row_mean(const WideWeights& weights, const View& grads, Block at, float scale, float l2) {
  weights.catch_up(at.begin, at.count);
  float g_scratch[kChunk], w_scratch[kChunk];
  D sums[kAccumulators] = {};
  for (std::int64_t done = 0; done < at.count; done += kChunk) {
    const std::int64_t n = at.count - done < kChunk ? at.count - done : kChunk;
    const float* g = as_floats(grads, at.begin + done, n, g_scratch);
    const float* w = l2 != 0 ? weights.floats(at.begin + done, n, w_scratch) : g;
    sweep(n, [&](auto io, std::int64_t i, auto u) BOOST_EXT_INLINE_LAMBDA {
      D& acc = sums[decltype(u)::value];
      acc = acc + widen(scale * io.load(g + i) + l2 * io.load(w + i));
    });
  }
  return static_cast<float>(sum((sums[0] + sums[1]) + (sums[2] + sums[3])) / static_cast<double>(at.count));
}

OfTensor of_tensor(const OptimizerStep& s, std::int64_t t) { return {s.lr[t], s.decay[t], s.first[t] != 0}; }

// Squares of a block, summed in registers.
struct Squares {
  D weights{};
  D direction{};
};
BOOST_EXT_INLINE void add_square(D& total, F x) {
  const D wide = widen(x);
  total = add_product(total, wide, wide);
}

// Where a block of a state may go over the end of a row, rows are no blocks of work: their means come first.
bool coded(const OptimizerStep& s, std::int64_t t) {
  for (int k = 0; k < s.states; ++k) {
    if (s.state[k][static_cast<std::size_t>(t)].dtype == DType::u8) return true;
  }
  return false;
}

// The means of the ready gradients of centralized tensors with coded state, row by row.
class RowMeans {
 public:
  RowMeans(const Context& context, const OptimizerStep& s)
      : by_row_(s.weights.count), ahead_(s.weights.count), first_(s.weights.count), means_(count(s)) {
    if (!any_) return;
    Blocks(s.weights, ahead_.get()).run(context.threads, [&](Block at) {
      if (!ahead_[at.tensor]) return;
      const WideWeights weights(s.weights[at.tensor], s.narrow[at.tensor]);
      means_[first_[at.tensor] + at.begin / at.count] =
          row_mean(weights, s.grads[at.tensor], at, s.scale[at.tensor], s.l2[at.tensor]);
    });
  }
  const unsigned char* by_row() { return by_row_.get(); }
  // Of each row of the tensor, or nothing if they are not known ahead.
  const float* of(std::int64_t t) { return ahead_[t] ? means_.get() + first_[t] : nullptr; }

 private:
  std::int64_t count(const OptimizerStep& s) {
    std::int64_t rows = 0;
    for (std::int64_t t = 0; t < s.weights.count; ++t) {
      ahead_[t] = s.centralize[t] && s.weights[t].size > 0 && coded(s, t);
      by_row_[t] = s.centralize[t] && !ahead_[t];
      first_[t] = rows;
      if (ahead_[t]) rows += s.weights[t].rows;
    }
    any_ = rows > 0;
    return rows;
  }
  Scratch<unsigned char> by_row_, ahead_;
  Scratch<std::int64_t> first_;
  bool any_ = false;
  Scratch<float> means_;
};

template <Storage kStorage> struct Stored {
  static constexpr Storage value = kStorage;
};

// Some elements of a tensor, n of them from `begin` on: a whole block where nothing is converted, or up to kChunk.
struct Chunk {
  std::int64_t tensor, begin, n;
};

template <Storage kStorage, int kStates> class States {
 public:
  // Whether a block of a state may end within a chunk.
  static constexpr bool kBlocks = kStorage == Storage::codes || kStorage == Storage::any;

  States(const OptimizerStep& s, const Chunk& c, float (*waiting)[kChunk]) : key_(s.keys[c.tensor]), begin_(c.begin) {
    for (int k = 0; k < kStates; ++k) of_[k] = {s, k, c.tensor, c.begin, waiting == nullptr ? nullptr : waiting[k]};
  }
  BOOST_EXT_INLINE void begin_block(std::int64_t i) {
    for (int k = 0; k < kStates; ++k) of_[k].begin_block(i);
  }
  BOOST_EXT_INLINE void end_block(std::int64_t i) {
    for (int k = 0; k < kStates; ++k) of_[k].end_block(i);
  }
  RandomBits random(std::int64_t i) const {
    RandomBits random(key_, begin_);
    random.skip(i);
    return random;
  }
  template <class Io> BOOST_EXT_INLINE void load(Io io, std::int64_t i, F* x) const {
    for (int k = 0; k < kStates; ++k) x[k] = of_[k].load(io, i, k);
  }
  template <class Io> BOOST_EXT_INLINE void store(Io io, std::int64_t i, const F* x, RandomBits& random) {
    U bits{};
    if (kStorage == Storage::halves || kStorage == Storage::any) bits = random();
    random.skip(kLanes);
    for (int k = 0; k < kStates; ++k) of_[k].store(io, i, k, x[k], bits);
  }
  // Codes, once all n elements of the chunk are stored.
  void encode(std::int64_t n, const NextChunk& weights, const NextChunk& grads) {
    if (!kBlocks) return;
    RandomBits random(key_, begin_);
    for (std::int64_t from = 0; from < n; from += kStateBlock) {
      const std::int64_t count = n - from < kStateBlock ? n - from : kStateBlock;
      float inverse[kStates + 1];
      for (int k = 0; k < kStates; ++k) inverse[k] = of_[k].inverse(from);
      sixteens(count, [&](auto io, std::int64_t i) BOOST_EXT_INLINE_LAMBDA {
        const U bits = random();
        random.skip(kLanes);
        weights.fetch(from + i);
        grads.fetch(from + i);
        for (int k = 0; k < kStates; ++k) of_[k].encode(io, from + i, k, inverse[k], bits);
      });
      for (int k = 0; k < kStates; ++k) {
        if (inverse[k] == 0) of_[k].clear(from, count);
      }
    }
  }

 private:
  State<kStorage> of_[kStates + 1];
  std::uint64_t key_;
  std::int64_t begin_;
};

constexpr auto kNothing = [](auto&&...) {};

// State of 8 and 16 bits: never; by loops for any mixture; or also by loops of their own, which take long to compile.
enum class Narrow : std::uint8_t { never, any, fast };

// body_of(tensor)(squares, w, u, state) -> w for all elements, with the ready gradients u of the weights w; it changes
// state. What comes back is stored if kWrite; with kGradient false u is 0, and states are only read. A body holds
// values alone: to the compiler a store of codes may change all that is behind a reference, and it would read that
// again. after(chunk, weights, squares) after each chunk, done(at, squares) after each block.
template <int kStates, bool kGradient, bool kWrite, Narrow kNarrow, class BodyOf, class After, class Done>
void each_element(const Context& context, const OptimizerStep& s, RowMeans& means, Blocks& blocks, BodyOf body_of,
                  After after, Done done_with) {
  const auto step_block = [&](Block at, auto storage) {
    constexpr Storage kStorage = decltype(storage)::value;
    // What writes as much as it reads gains nothing by asking ahead, and loses a tenth while the memory is fast.
    using Loads = std::conditional_t<kStorage == Storage::floats, Full, Ahead>;
    const View& weights = s.weights[at.tensor];
    const WideWeights wide(weights, s.narrow[at.tensor]);
    const float scale = s.scale[at.tensor];
    const float l2 = s.l2[at.tensor];
    const View& grads = s.grads[at.tensor];
    const float* of_rows = kGradient ? means.of(at.tensor) : nullptr;
    const std::int64_t row = of_rows ? weights.size / weights.rows : 0;
    const auto body = body_of(at.tensor);
    const bool centred = kGradient && means.by_row()[at.tensor];
    float mean = centred ? row_mean(wide, grads, at, scale, l2) : 0;
    alignas(64) float w_scratch[kChunk], g_scratch[kChunk], waiting[kStates + 1][kChunk];
    Squares squares;
    using StatesOf = States<kStorage, kStates>;
    const bool in_place = !StatesOf::kBlocks && wide.in_place() && !is_half(grads);
    const std::int64_t unit = in_place ? at.count : kChunk;
    for (std::int64_t done = 0; done < at.count; done += unit) {
      const std::int64_t left = at.count - done;
      const Chunk c{at.tensor, at.begin + done, left < unit ? left : unit};
      if (kGradient && !centred) wide.catch_up(c.begin, c.n);
      float* w = wide.floats(c.begin, c.n, w_scratch);
      const float* g = kGradient ? as_floats(grads, c.begin, c.n, g_scratch) : w;
      StatesOf states(s, c, waiting);
      for (std::int64_t from = 0, to = c.n, block = 0; from < c.n; from = to, to = c.n) {
        if (of_rows) {  // as far as this row goes
          const std::int64_t r = (c.begin + from) / row;
          mean = of_rows[r];
          if ((r + 1) * row - c.begin < c.n) to = (r + 1) * row - c.begin;
        }
        if (StatesOf::kBlocks && to > block + kStateBlock) to = block + kStateBlock;
        if (StatesOf::kBlocks && from == block) states.begin_block(block);
        RandomBits random = states.random(from);
        sixteens<Loads>(to - from, [&](auto io, std::int64_t j) BOOST_EXT_INLINE_LAMBDA {
          const std::int64_t i = from + j;
          const F old = io.load(w + i);
          F u{}, x[kStates + 1];
          states.load(io, i, x);
          if (kGradient) u = scale * io.load(g + i) + l2 * old - all(mean);
          const F next = body(squares, old, u, x);
          if (kGradient) states.store(io, i, x, random);
          if (kWrite) io.store(w + i, next);
        });
        if (StatesOf::kBlocks && (to == c.n || to == block + kStateBlock)) {
          if (kGradient) states.end_block(block);
          block += kStateBlock;
        }
      }
      if (kGradient) states.encode(c.n, {weights, c.begin}, {grads, c.begin});
      after(c, w, squares);
      if (kWrite) wide.store(w, c.begin, c.n);
    }
    done_with(at, squares);
  };
  const auto step = [&](Block at) {
    if constexpr (kNarrow != Narrow::never) {
      const Storage storage = storage_of(s, at.tensor);
      if constexpr (kNarrow == Narrow::fast) {
        if (storage == Storage::halves) return step_block(at, Stored<Storage::halves>());
        if (storage == Storage::codes) return step_block(at, Stored<Storage::codes>());
      }
      if (storage != Storage::floats) return step_block(at, Stored<Storage::any>());
    }
    step_block(at, Stored<Storage::floats>());
  };
  blocks.run(context.threads, step, (kGradient ? 2 : 1) + kStates);
}

// The rules with state of 8 and 16 bits, but for lamb: as the table of ops/optimizer_rules.cpp has it.
template <class R> constexpr bool kMayBeNarrow = false;
template <> constexpr bool kMayBeNarrow<Momentum> = true;
template <> constexpr bool kMayBeNarrow<Adam> = true;
template <> constexpr bool kMayBeNarrow<AdamWeightDecay> = true;
template <> constexpr bool kMayBeNarrow<AdamW> = true;
template <> constexpr bool kMayBeNarrow<Lion> = true;
template <> constexpr bool kMayBeNarrow<NAdamW> = true;

// A rule whose flag `cautious` is known to be false: in the loop the question would take a fifth of the arithmetic.
template <class R> struct Plain : R {
  explicit Plain(const R& rule) : R(rule) {}
  BOOST_EXT_INLINE F operator()(const OfTensor& t, F w, F u, F* state) const {
    R rule = *this;
    rule.cautious = false;
    return rule(t, w, u, state);
  }
};

template <Narrow kNarrow, class R> void apply_rule(const Context& context, const OptimizerStep& s, const R& rule) {
  RowMeans means(context, s);
  Blocks blocks(s.weights, means.by_row());
  each_element<R::kStates, true, true, kNarrow>(
      context, s, means, blocks,
      [&](std::int64_t t) {
        return [rule, of = of_tensor(s, t)](Squares&, F w, F u, F* state)
                   BOOST_EXT_INLINE_LAMBDA { return rule(of, w, u, state); };
      },
      kNothing, kNothing);
}
template <class R> void apply(const Context& context, const OptimizerStep& s) {
  apply_rule<Narrow::never>(context, s, R(s.settings));
}
template <class R> void apply_cautious(const Context& context, const OptimizerStep& s) {
  const R rule(s.settings);
  if (rule.cautious) return apply_rule<kMayBeNarrow<R> ? Narrow::any : Narrow::never>(context, s, rule);
  apply_rule<kMayBeNarrow<R> ? Narrow::fast : Narrow::never>(context, s, Plain<R>(rule));
}

// Moments and norms in one sweep, weights in a second one: nobody knows a norm before the last element. Both see the
// moments as they are stored.
void apply_lamb(const Context& context, const OptimizerStep& s) {
  const Lamb rule(s.settings);
  RowMeans means(context, s);
  Blocks blocks(s.weights, kBlock, means.by_row());
  Scratch<double> w_squares(blocks.count()), r_squares(blocks.count());
  each_element<2, true, false, Narrow::fast>(
      context, s, means, blocks,
      [&](std::int64_t) {
        return [rule](Squares& squares, F w, F u, F* mv) BOOST_EXT_INLINE_LAMBDA {
          rule.moments(u, mv);
          add_square(squares.weights, w);
          return w;
        };
      },
      [&](const Chunk& c, const float* w, Squares& squares) {
        States<Storage::any, 2> moments(s, c, nullptr);
        const OfTensor of = of_tensor(s, c.tensor);
        for (std::int64_t from = 0; from < c.n; from += kStateBlock) {
          moments.begin_block(from);
          sixteens(c.n - from < kStateBlock ? c.n - from : kStateBlock,
                   [&](auto io, std::int64_t j) BOOST_EXT_INLINE_LAMBDA {
                     F mv[3];
                     moments.load(io, from + j, mv);
                     // Beyond the end eps alone divides 0, which is 0.
                     add_square(squares.direction, rule.direction(of, io.load(w + from + j), mv));
                   });
        }
      },
      [&](Block at, const Squares& squares) {
        w_squares[at.index] = sum(squares.weights);
        r_squares[at.index] = sum(squares.direction);
      });
  Scratch<float> trust(s.weights.count);
  for (std::int64_t t = 0; t < s.weights.count; ++t) {
    double w = 0, r = 0;
    for (std::int64_t b = blocks.first(t); b < blocks.first(t + 1); ++b) {
      w += w_squares[b];
      r += r_squares[b];
    }
    trust[t] = w > 0 && r > 0 ? static_cast<float>(__builtin_sqrt(w) / __builtin_sqrt(r)) : 1.0F;
  }
  Blocks suitable(s.weights, means.by_row());
  each_element<2, false, true, Narrow::fast>(
      context, s, means, suitable,
      [&](std::int64_t t) {
        return [rule, of = of_tensor(s, t), rate = s.lr[t] * trust[t]](Squares&, F w, F, const F* mv)
                   BOOST_EXT_INLINE_LAMBDA { return w - rate * rule.direction(of, w, mv); };
      },
      kNothing, kNothing);
}

}  // namespace

void optimizer_step(const Context& context, Rule rule, const OptimizerStep& s) {
  switch (rule) {
    case Rule::sgd:
      return s.states == 0 ? apply<PlainSgd>(context, s) : apply<Sgd>(context, s);
    case Rule::momentum:
      return apply_cautious<Momentum>(context, s);
    case Rule::adam:
      return s.states == 2 ? apply_cautious<Adam>(context, s) : apply_cautious<AmsGrad>(context, s);
    case Rule::adam_weight_decay:
      return apply_cautious<AdamWeightDecay>(context, s);
    case Rule::adamw:
      return apply_cautious<AdamW>(context, s);
    case Rule::lamb:
      return apply_lamb(context, s);
    case Rule::lion:
      return apply_cautious<Lion>(context, s);
    case Rule::nadamw:
      return apply_cautious<NAdamW>(context, s);
    case Rule::ademamix:
      return apply_cautious<AdEmaMix>(context, s);
    case Rule::adan:
      return apply_cautious<Adan>(context, s);
    case Rule::schedule_free_sgd:
      return apply<ScheduleFreeSgd>(context, s);
    case Rule::schedule_free_adamw:
      return apply<ScheduleFreeAdamW>(context, s);
    case Rule::adagrad:
      return apply<Adagrad>(context, s);
    case Rule::proximal_adagrad:
      return apply<ProximalAdagrad>(context, s);
    case Rule::rmsprop:
      return apply<RmsProp>(context, s);
    case Rule::centered_rmsprop:
      return apply<CenteredRmsProp>(context, s);
    case Rule::ftrl:
      return apply<Ftrl>(context, s);
  }
}

void sum_rows(const Context& context, const View& values, const std::int64_t* order, const std::int64_t* first,
              std::int64_t count, float* out) {
  const std::int64_t width = values.size / first[count];
  on_threads(context.threads, values.size, count, [&](std::int64_t begin, std::int64_t end) {
    typed(values, [&](auto* p) BOOST_EXT_INLINE_LAMBDA {
      for (std::int64_t r = begin; r < end; ++r) {
        sixteens(width, [&](auto io, std::int64_t i) BOOST_EXT_INLINE_LAMBDA {
          D total{};
          for (std::int64_t k = first[r]; k < first[r + 1]; ++k) {
            total = total + widen(io.load(p + order[k] * width + i));
          }
          double lane[kLanes];
          float rounded[kLanes];
          std::memcpy(lane, &total, sizeof lane);
          for (int k = 0; k < kLanes; ++k) rounded[k] = static_cast<float>(lane[k]);
          io.store(out + r * width + i, load(rounded));
        });
      }
    });
  });
}

}  // namespace boost_ext::cpu::BOOST_EXT_ISA
