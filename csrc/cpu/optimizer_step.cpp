#include "ops/optimizer_step.h"

#include "cpu/chunks.h"
#include "cpu/optimizer_state.h"
#include "cpu/parallel.h"
#include "ops/optimizer_rules.h"

namespace boost_ext::cpu::BOOST_EXT_ISA {
namespace {

constexpr std::int64_t kBlock = 4096;

// The mean of the ready gradients of one row.
float row_mean(const View& weights, const View& grads, Block at, float scale, float l2) {
  float g_scratch[kChunk], w_scratch[kChunk];
  D sums[kAccumulators] = {};
  for (std::int64_t done = 0; done < at.count; done += kChunk) {
    const std::int64_t n = at.count - done < kChunk ? at.count - done : kChunk;
    const float* g = as_floats(grads, at.begin + done, n, g_scratch);
    const float* w = l2 != 0 ? as_floats(weights, at.begin + done, n, w_scratch) : g;
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
    Blocks(s.weights, kBlock, ahead_.get()).run(context.threads, [&](Block at) {
      if (!ahead_[at.tensor]) return;
      catch_up(s, at);
      means_[first_[at.tensor] + at.begin / at.count] =
          row_mean(s.weights[at.tensor], s.grads[at.tensor], at, s.scale[at.tensor], s.l2[at.tensor]);
    });
  }
  const unsigned char* by_row() { return by_row_.get(); }
  // Of each row of the tensor, or nothing if they are not known ahead.
  const float* of(std::int64_t t) { return ahead_[t] ? means_.get() + first_[t] : nullptr; }

  static void catch_up(const OptimizerStep& s, Block at) {
    const View& narrow = s.narrow[at.tensor];
    if (!narrow.data) return;
    float* master = static_cast<float*>(s.weights[at.tensor].data) + at.begin;
    typed(narrow, [&](auto* p) { follow(master, p + at.begin, at.count); });
  }

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

// Some elements of a tensor as float32, n <= kChunk of them from `begin` on.
struct Chunk {
  std::int64_t tensor, begin, n;
  float* w;
  float* state[kMaxStates];
};

// body(chunk, io, i, squares, w, u) -> w, for all elements: the ready gradients u of the weights w. What comes back is
// stored if kWrite; with kGradient false u is 0 and gradients are not read. i counts from the start of the chunk.
// after(chunk, squares) after each chunk, done(at, squares) after each block.
template <bool kGradient, bool kWrite, class Body, class After, class Done>
void each_element(const Context& context, const OptimizerStep& s, RowMeans& means, std::int64_t weight, Body body,
                  After after, Done done_with) {
  Blocks(s.weights, kBlock, means.by_row())
      .run(
          context.threads,
          [&](Block at) {
            const View& weights = s.weights[at.tensor];
            const View& narrow = s.narrow[at.tensor];
            const float scale = s.scale[at.tensor];
            const float l2 = s.l2[at.tensor];
            if (kGradient) RowMeans::catch_up(s, at);
            const View& grads = s.grads[at.tensor];
            const float* of_rows = kGradient ? means.of(at.tensor) : nullptr;
            const std::int64_t row = of_rows ? weights.size / weights.rows : 0;
            float mean = 0;
            if (kGradient && means.by_row()[at.tensor]) mean = row_mean(weights, grads, at, scale, l2);
            alignas(64) float w_scratch[kChunk], g_scratch[kChunk], state_scratch[kMaxStates][kChunk + 48];
            const bool narrow_state = is_narrow(s, at.tensor);
            U random[kChunk / kLanes + 5];
            Squares squares;
            for (std::int64_t done = 0; done < at.count; done += kChunk) {
              Chunk c{};
              c.tensor = at.tensor;
              c.begin = at.begin + done;
              c.n = at.count - done < kChunk ? at.count - done : kChunk;
              c.w = as_floats(weights, c.begin, c.n, w_scratch);
              const float* g = kGradient ? as_floats(grads, c.begin, c.n, g_scratch) : c.w;
              for (int k = 0; k < s.states; ++k)
                c.state[k] = open_state(s, k, c.tensor, c.begin, c.n, state_scratch[k]);
              for (std::int64_t from = 0, to = c.n; from < c.n; from = to, to = c.n) {
                if (of_rows) {  // as far as this row goes
                  const std::int64_t r = (c.begin + from) / row;
                  mean = of_rows[r];
                  if ((r + 1) * row - c.begin < c.n) to = (r + 1) * row - c.begin;
                }
                sixteens(to - from, [&](auto io, std::int64_t j) BOOST_EXT_INLINE_LAMBDA {
                  const std::int64_t i = from + j;
                  const F old = io.load(c.w + i);
                  F u{};
                  if (kGradient) u = scale * io.load(g + i) + l2 * old - all(mean);
                  const F next = body(c, io, i, squares, old, u);
                  if (kWrite) io.store(c.w + i, next);
                });
              }
              if (kGradient) {  // a sweep without them only reads the states
                if (narrow_state) random_bits(s.keys[c.tensor], c.begin, c.n, random);
                for (int k = 0; k < s.states; ++k) close_state(s, k, c.tensor, c.begin, c.n, c.state[k], random);
              }
              after(c, squares);
              if (!kWrite) continue;
              if (is_half(weights)) typed(weights, [&](auto* p) { convert(c.w, p + c.begin, c.n); });
              if (narrow.data) typed(narrow, [&](auto* p) { convert(c.w, p + c.begin, c.n); });
            }
            done_with(at, squares);
          },
          weight);
}

constexpr auto kNothing = [](auto&&...) {};

template <class R> void apply(const Context& context, const OptimizerStep& s) {
  const R rule(s.settings);
  RowMeans means(context, s);
  each_element<true, true>(
      context, s, means, 2 + R::kStates,
      [&](const Chunk& c, auto io, std::int64_t i, Squares&, F w, F u) BOOST_EXT_INLINE_LAMBDA {
        F state[R::kStates + 1];
        for (int k = 0; k < R::kStates; ++k) state[k] = io.load(c.state[k] + i);
        const F next = rule(of_tensor(s, c.tensor), w, u, state);
        for (int k = 0; k < R::kStates; ++k) io.store(c.state[k] + i, state[k]);
        return next;
      },
      kNothing, kNothing);
}

// Moments and norms in one sweep, weights in a second one: nobody knows a norm before the last element. Both see the
// moments as they are stored.
void apply_lamb(const Context& context, const OptimizerStep& s) {
  const Lamb rule(s.settings);
  RowMeans means(context, s);
  Blocks blocks(s.weights, kBlock, means.by_row());
  Scratch<double> w_squares(blocks.count()), r_squares(blocks.count());
  const auto direction = [&](const Chunk& c, const float* m, const float* v, auto io, std::int64_t i, F w)
                             BOOST_EXT_INLINE_LAMBDA {
                               const F mv[2] = {io.load(m + i), io.load(v + i)};
                               return rule.direction(of_tensor(s, c.tensor), w, mv);
                             };
  each_element<true, false>(
      context, s, means, 3,
      [&](const Chunk& c, auto io, std::int64_t i, Squares& squares, F w, F u) BOOST_EXT_INLINE_LAMBDA {
        F mv[2] = {io.load(c.state[0] + i), io.load(c.state[1] + i)};
        rule.moments(u, mv);
        io.store(c.state[0] + i, mv[0]);
        io.store(c.state[1] + i, mv[1]);
        add_square(squares.weights, w);
        return w;
      },
      [&](const Chunk& c, Squares& squares) {
        float m_scratch[kChunk], v_scratch[kChunk];
        const float* m = open_state(s, 0, c.tensor, c.begin, c.n, m_scratch);
        const float* v = open_state(s, 1, c.tensor, c.begin, c.n, v_scratch);
        sixteens(c.n, [&](auto io, std::int64_t i) BOOST_EXT_INLINE_LAMBDA {
          // Beyond the end eps alone divides 0, which is 0.
          add_square(squares.direction, direction(c, m, v, io, i, io.load(c.w + i)));
        });
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
  each_element<false, true>(
      context, s, means, 3,
      [&](const Chunk& c, auto io, std::int64_t i, Squares&, F w, F) BOOST_EXT_INLINE_LAMBDA {
        const float rate = s.lr[c.tensor] * trust[c.tensor];
        return w - rate * direction(c, c.state[0], c.state[1], io, i, w);
      },
      kNothing, kNothing);
}

}  // namespace

void optimizer_step(const Context& context, Rule rule, const OptimizerStep& s) {
  switch (rule) {
    case Rule::sgd:
      return s.states == 0 ? apply<PlainSgd>(context, s) : apply<Sgd>(context, s);
    case Rule::momentum:
      return apply<Momentum>(context, s);
    case Rule::adam:
      return s.states == 2 ? apply<Adam>(context, s) : apply<AmsGrad>(context, s);
    case Rule::adam_weight_decay:
      return apply<AdamWeightDecay>(context, s);
    case Rule::adamw:
      return apply<AdamW>(context, s);
    case Rule::lamb:
      return apply_lamb(context, s);
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
