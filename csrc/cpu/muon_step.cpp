#include "ops/muon_step.h"

#include "cpu/parallel.h"
#include "cpu/wide_weights.h"
#include "ops/optimizer_rules.h"
#include "ops/orthogonalize.h"

namespace boost_ext::cpu::BOOST_EXT_ISA {
namespace {

constexpr std::int64_t kBlock = 4096;

template <class T> float mean_of(const T* row, std::int64_t n, float scale) {
  D sums[kAccumulators] = {};
  sweep(n, [&](auto io, std::int64_t i, auto u) BOOST_EXT_INLINE_LAMBDA {
    D& mine = sums[decltype(u)::value];
    mine = mine + widen(scale * io.load(row + i));
  });
  return static_cast<float>(sum((sums[0] + sums[1]) + (sums[2] + sums[3])) / static_cast<double>(n));
}

// Moments, and what is to be orthogonalized. Centralized, a block is a row.
void gather(const MuonStep& s, std::int64_t t, Block at, float* to) {
  const Decay average(s.settings->momentum);
  const bool nesterov = s.settings->nesterov;
  const float scale = s.scale[t];
  float* m = static_cast<float*>(s.moments[t].data) + at.begin;
  typed(s.grads[t], [&](const auto* grads) {
    const auto* g = grads + at.begin;
    const F mean = all(s.centralize[t] ? mean_of(g, at.count, scale) : 0);
    sixteens(at.count, [&](auto io, std::int64_t i) BOOST_EXT_INLINE_LAMBDA {
      const F u = scale * io.load(g + i) - mean;
      const F next = average(io.load(m + i), u);
      io.store(m + i, next);
      io.store(to + at.begin + i, nesterov ? average(next, u) : next);
    });
  });
}

void update(const MuonStep& s, std::int64_t t, Block at, const float* directions) {
  const WideWeights weights(s.weights[t], s.narrow[t]);
  const float keep = s.keep[t], rate = s.rate[t];
  float scratch[kChunk];
  for (std::int64_t done = 0; done < at.count; done += kChunk) {
    const std::int64_t n = at.count - done < kChunk ? at.count - done : kChunk, begin = at.begin + done;
    weights.catch_up(begin, n);
    float* w = weights.floats(begin, n, scratch);
    const float* o = directions + begin;
    sixteens(n, [&](auto io, std::int64_t i)
                    BOOST_EXT_INLINE_LAMBDA { io.store(w + i, keep * io.load(w + i) - rate * io.load(o + i)); });
    weights.store(w, begin, n);
  }
}

void step_matrix(const MuonStep& s, std::int64_t t, int threads) {
  View matrix = s.weights[t];
  const Tensors one(&matrix, 1);
  Scratch<float> memory(matrix.size);
  matrix.data = memory.get();
  matrix.dtype = DType::f32;
  Blocks(one, kBlock, s.centralize + t).run(threads, [&](Block at) { gather(s, t, at, memory.get()); }, 4);
  Context context;
  context.threads = threads;
  orthogonalize(context, one, one, s.settings->iterations, s.settings->eps);
  Blocks(one, kBlock).run(threads, [&](Block at) { update(s, t, at, memory.get()); }, 3);
}

}  // namespace

void muon_step(const Context& context, const MuonStep& s) {
  std::int64_t work = 0;
  for (std::int64_t t = 0; t < s.weights.count; ++t) {
    if (!shared_by_threads(s.weights[t])) work += work_of(s.weights[t], s.settings->iterations);
  }
  on_threads(context.threads, work, s.weights.count, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      if (!shared_by_threads(s.weights[t])) step_matrix(s, t, 1);
    }
  });
  for (std::int64_t t = 0; t < s.weights.count; ++t) {
    if (shared_by_threads(s.weights[t])) step_matrix(s, t, context.threads);
  }
}

}  // namespace boost_ext::cpu::BOOST_EXT_ISA
