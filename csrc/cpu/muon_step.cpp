#include "ops/muon_step.h"

#include "cpu/matrix_rows.h"

namespace boost_ext::cpu::BOOST_EXT_ISA {
namespace {

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
  step_along(WideWeights(s.weights[t], s.narrow[t]), at.begin, at.count, s.keep[t], s.rate[t], directions + at.begin);
}

void step_matrix(Context context, const MuonStep& s, std::int64_t t) {
  View matrix = s.weights[t];
  const Tensors one(&matrix, 1);
  Scratch<float> memory(matrix.size);
  matrix.data = memory.get();
  matrix.dtype = DType::f32;
  Blocks(one, s.centralize + t).run(context.threads, [&](Block at) { gather(s, t, at, memory.get()); }, 4);
  orthogonalize(context, one, one, s.settings->iterations, s.settings->eps);
  Blocks(one).run(context.threads, [&](Block at) { update(s, t, at, memory.get()); }, 3);
}

}  // namespace

void muon_step(const Context& context, const MuonStep& s) {
  each_matrix(context.threads, s.weights, s.settings->iterations, [&](std::int64_t t, int threads) {
    Context of_one = context;
    of_one.threads = threads;
    step_matrix(of_one, s, t);
  });
}

}  // namespace boost_ext::cpu::BOOST_EXT_ISA
