#include "ops/optimizer_step.h"

#include "cpu/chunks.h"
#include "cpu/optimizer_rules.h"
#include "cpu/parallel.h"

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
  total = total + wide * wide;
}

// body(at, io, i, squares, w, u) -> w, for all elements: the ready gradients u of the weights w. What comes back is
// stored if kWrite; with kGradient false u is 0 and gradients are not read. i counts from the start of the tensor.
// done(at, squares) after each block.
template <bool kGradient, bool kWrite, class Body, class Done>
void each_element(const Context& context, const OptimizerStep& s, std::int64_t weight, Body body, Done done_with) {
  Blocks(s.weights, kBlock, s.centralize)
      .run(
          context.threads,
          [&](Block at) {
            const View& weights = s.weights[at.tensor];
            const View& narrow = s.narrow[at.tensor];
            const float scale = s.scale[at.tensor];
            const float l2 = s.l2[at.tensor];
            if (kGradient && narrow.data) {
              typed(narrow,
                    [&](auto* p) { follow(static_cast<float*>(weights.data) + at.begin, p + at.begin, at.count); });
            }
            const View& grads = s.grads[at.tensor];
            float mean = 0;
            if (kGradient && s.centralize[at.tensor]) mean = row_mean(weights, grads, at, scale, l2);
            float w_scratch[kChunk], g_scratch[kChunk];
            Squares squares;
            for (std::int64_t done = 0; done < at.count; done += kChunk) {
              const std::int64_t begin = at.begin + done;
              const std::int64_t n = at.count - done < kChunk ? at.count - done : kChunk;
              float* w = as_floats(weights, begin, n, w_scratch);
              const float* g = kGradient ? as_floats(grads, begin, n, g_scratch) : w;
              sixteens(n, [&](auto io, std::int64_t i) BOOST_EXT_INLINE_LAMBDA {
                const F old = io.load(w + i);
                F u{};
                if (kGradient) u = scale * io.load(g + i) + l2 * old - all(mean);
                const F next = body(at, io, begin + i, squares, old, u);
                if (kWrite) io.store(w + i, next);
              });
              if (!kWrite) continue;
              if (is_half(weights)) typed(weights, [&](auto* p) { convert(w, p + begin, n); });
              if (narrow.data) typed(narrow, [&](auto* p) { convert(w, p + begin, n); });
            }
            done_with(at, squares);
          },
          weight);
}

template <class R> void apply(const Context& context, const OptimizerStep& s) {
  const R rule(s);
  each_element<true, true>(
      context, s, 2 + R::kStates,
      [&](Block at, auto io, std::int64_t i, Squares&, F w, F u) BOOST_EXT_INLINE_LAMBDA {
        F state[R::kStates + 1];
        float* p[R::kStates + 1];
        for (int k = 0; k < R::kStates; ++k) {
          p[k] = static_cast<float*>(s.state[k][static_cast<std::size_t>(at.tensor)].data) + i;
          state[k] = io.load(p[k]);
        }
        const F next = rule(of_tensor(s, at.tensor), w, u, state);
        for (int k = 0; k < R::kStates; ++k) io.store(p[k], state[k]);
        return next;
      },
      [](Block, const Squares&) {});
}

// Moments and norms in one sweep, weights in a second one: nobody knows a norm before the last element.
void apply_lamb(const Context& context, const OptimizerStep& s) {
  const Lamb rule(s);
  Blocks blocks(s.weights, kBlock, s.centralize);
  Scratch<double> w_squares(blocks.count()), r_squares(blocks.count());
  const auto moments = [&](Block at, std::int64_t i, int k) BOOST_EXT_INLINE_LAMBDA {
    return static_cast<float*>(s.state[k][static_cast<std::size_t>(at.tensor)].data) + i;
  };
  each_element<true, false>(
      context, s, 3,
      [&](Block at, auto io, std::int64_t i, Squares& squares, F w, F u) BOOST_EXT_INLINE_LAMBDA {
        float* m = moments(at, i, 0);
        float* v = moments(at, i, 1);
        F mv[2] = {io.load(m), io.load(v)};
        rule.moments(u, mv);
        io.store(m, mv[0]);
        io.store(v, mv[1]);
        add_square(squares.weights, w);
        // Beyond the end of a row the centralized gradient is minus its mean, not 0.
        add_square(squares.direction, io.only(rule.direction(of_tensor(s, at.tensor), w, mv)));
        return w;
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
      context, s, 3,
      [&](Block at, auto io, std::int64_t i, Squares&, F w, F) BOOST_EXT_INLINE_LAMBDA {
        const OfTensor t = of_tensor(s, at.tensor);
        const F mv[2] = {io.load(moments(at, i, 0)), io.load(moments(at, i, 1))};
        return w - t.lr * trust[at.tensor] * rule.direction(t, w, mv);
      },
      [](Block, const Squares&) {});
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
