// What the optimizers of matrices share.
#pragma once

#include "cpu/parallel.h"
#include "cpu/wide_weights.h"
#include "ops/matrix_step.h"
#include "ops/optimizer_rules.h"
#include "ops/orthogonalize.h"

namespace boost_ext::cpu::BOOST_EXT_ISA {

// step(t, threads) for each matrix that is not empty, with `steps` of the iteration of orthogonalize().
template <class Step> void each_matrix(int threads, Tensors matrices, std::int64_t steps, Step step) {
  Scratch<std::int64_t> order(matrices.count);
  const MatrixShares shares = share_matrices(threads, matrices, steps, order.get());
  for (std::int64_t i = 0; i < shares.together; ++i) step(order[i], threads);
  const auto alone = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) step(order[shares.together + i], 1);
  };
  on_threads(threads, shares.work, shares.count - shares.together, alone, 1);
}

template <class T> float mean_of(const T* row, std::int64_t n, float scale) {
  const double total =
      sum_of(n, [&](auto io, std::int64_t i) BOOST_EXT_INLINE_LAMBDA { return scale * io.load(row + i); });
  return static_cast<float>(total / static_cast<double>(n));
}

// What is subtracted from the rows of a gradient.
inline void find_means(const View& gradient, float scale, int threads, float* means) {
  const std::int64_t rows = gradient.rows, columns = gradient.size / rows;
  on_threads(threads, gradient.size, rows, [&](std::int64_t begin, std::int64_t end) {
    typed(gradient, [&](const auto* g) {
      for (std::int64_t i = begin; i < end; ++i) means[i] = mean_of(g + i * columns, columns, scale);
    });
  });
}

// w = keep w - rate d, for `count` elements from `begin` on.
inline void step_along(const WideWeights& weights, std::int64_t begin, std::int64_t count, float keep, float rate,
                       const float* d) {
  float scratch[kChunk];
  for (std::int64_t done = 0; done < count; done += kChunk) {
    const std::int64_t n = count - done < kChunk ? count - done : kChunk;
    weights.catch_up(begin + done, n);
    float* w = weights.floats(begin + done, n, scratch);
    sixteens(n, [&](auto io, std::int64_t i)
                    BOOST_EXT_INLINE_LAMBDA { io.store(w + i, keep * io.load(w + i) - rate * io.load(d + done + i)); });
    weights.store(w, begin + done, n);
  }
}

// Adam of a projection: steps the moments at m and v, and returns A.
class ProjectedAdam {
 public:
  explicit ProjectedAdam(const StepSettings& s)
      : average1_(s.hyper[0]),
        average2_(s.hyper[1]),
        correct1_(static_cast<float>(1 / (1 - power(s.hyper[0], s.step)))),
        correct2_(static_cast<float>(1 / (1 - power(s.hyper[1], s.step)))),
        eps_(static_cast<float>(s.hyper[2])) {}
  template <class Io> BOOST_EXT_INLINE F operator()(Io io, float* m, float* v, F r) const {
    const F mean = average1_(io.load(m), r), square = average2_(io.load(v), r * r);
    io.store(m, mean);
    io.store(v, square);
    return correct1_ * mean / (sqrt(correct2_ * square) + all(eps_));
  }

 private:
  Decay average1_, average2_;
  float correct1_, correct2_, eps_;
};

}  // namespace boost_ext::cpu::BOOST_EXT_ISA
