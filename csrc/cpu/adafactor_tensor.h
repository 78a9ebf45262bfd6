// What adafactor_step does with one tensor, a stretch of elements at a time.
#pragma once

#include "cpu/parallel.h"
#include "cpu/wide_weights.h"
#include "ops/adafactor_step.h"

namespace boost_ext::cpu::BOOST_EXT_ISA {

// Some elements of a tensor, and the 1/sqrt of what R/mean(R) and C hold for them, from the first row and matrix on.
struct Stretch {
  std::int64_t begin, count;
  const float* of_rows;
  const float* of_columns;
};

// What the step makes of a tensor once its sums are known.
struct Update {
  float coefficient;  // of u / sqrt(V)
  float shrink;       // of w
};

struct AdaFactorTensor {
  const AdaFactorSettings& settings;
  const View &weights, &grads, &squares;
  WideWeights wide;
  const View* moments;  // or nothing
  float rate, decay, scale;
  double keep;  // b
  std::int64_t size;
  bool factored;
  std::int64_t height, width, matrix;
  float *rows, *columns;         // R and C
  std::int64_t channel;          // elements of an index of the first axis
  const float* means = nullptr;  // of the channels, if centralized

  AdaFactorTensor(const AdaFactorStep& step, std::int64_t t)
      : settings(*step.settings),
        weights(step.weights[t]),
        grads(step.grads[t]),
        squares(step.squares[t]),
        wide(weights, step.narrow[t]),
        moments(step.moments ? step.moments + t : nullptr),
        rate(step.rate[t]),
        decay(step.decay[t]),
        scale(static_cast<float>(settings.scale)),
        keep(step.beta2),
        size(weights.size),
        factored(weights.ndim >= 2),
        height(weights.height),
        width(weights.width),
        matrix(factored ? height * width : 0),
        rows(factored ? static_cast<float*>(step.rows[t].data) : nullptr),
        columns(factored ? static_cast<float*>(step.columns[t].data) : nullptr),
        channel(size / larger(weights.rows, 1)) {}

  // The mean of each channel, which centralization takes out.
  void find_means(int threads, float* into) {
    on_threads(threads, size, weights.rows, [&](std::int64_t begin, std::int64_t end) {
      float u[kChunk];
      for (std::int64_t row = begin; row < end; ++row) {
        D total{};
        for (std::int64_t done = 0; done < channel; done += kChunk) {
          const std::int64_t n = smaller(channel - done, kChunk);
          gradient(row * channel + done, n, u);
          sixteens(n, [&](auto io, std::int64_t i) BOOST_EXT_INLINE_LAMBDA { total = total + widen(io.load(u + i)); });
        }
        into[row] = static_cast<float>(sum(total) / static_cast<double>(channel));
      }
    });
    means = into;
  }

  // Adds u^2 of n elements, which may lie in several rows and matrices, to the sums of their rows and columns. Rows are
  // counted from the first element's, columns from `first_column` of its matrix.
  void add_squares(std::int64_t begin, std::int64_t n, std::int64_t first_column, double* of_rows,
                   double* of_columns) const {
    float u[kChunk];
    Place at = place(begin);
    for (std::int64_t done = 0; done < n; done += chunk()) {
      const std::int64_t count = smaller(n - done, chunk());
      gradient(begin + done, count, u);
      each_row(at, count,
               [&](auto constant, std::int64_t k, std::int64_t length, std::int64_t row, std::int64_t column)
                   BOOST_EXT_INLINE_LAMBDA {
                     double* to = of_columns + column - first_column;
                     of_rows[row] += add_row<decltype(constant)::value>(u + k, length, to);
                   });
    }
  }

  // R and C of some whole matrices, from `parts` sums a row and `bands` sums a column.
  void average(std::int64_t first, std::int64_t count, const double* of_rows, std::int64_t parts,
               const double* of_columns, std::int64_t bands) const {
    move(rows + first * height, count * height, of_rows, parts, parts, 1, 1 / static_cast<double>(width));
    move(columns + first * width, count * width, of_columns, bands, 1, width, 1 / static_cast<double>(height));
  }

  // V is of_rows[i]^-2 of_columns[j]^-2 in these matrices.
  void factors(std::int64_t first, std::int64_t count, float* of_rows, float* of_columns) const {
    const float* R = rows + first * height;
    const float* C = columns + first * width;
    for (std::int64_t m = 0; m < count; ++m) {
      const float mean = mean_of(R + m * height, height);
      for (std::int64_t i = m * height; i < (m + 1) * height; ++i) of_rows[i] = mean;
    }
    sixteens(count * height, [&](auto io, std::int64_t i) BOOST_EXT_INLINE_LAMBDA {
      io.store(of_rows + i, all(1) / sqrt(io.load(R + i) / io.load(of_rows + i)));
    });
    sixteens(count * width, [&](auto io, std::int64_t j)
                                BOOST_EXT_INLINE_LAMBDA { io.store(of_columns + j, all(1) / sqrt(io.load(C + j))); });
  }

  // The sum of (u / sqrt(V))^2 and of w^2. Masters follow.
  void measure(const Stretch& part, double& of_updates, double& of_weights) const {
    of_updates = of_weights = 0;
    chunks(part, [&](std::int64_t begin, std::int64_t n, const float* u, const float* factor) {
      float w_scratch[kChunk], v_scratch[kChunk];
      wide.catch_up(begin, n);
      const float* v = factored ? nullptr : as_floats(squares, begin, n, v_scratch);
      F sums[2][kAccumulators] = {};
      sweep(n, [&](auto io, std::int64_t i, auto k) BOOST_EXT_INLINE_LAMBDA {
        const F x = io.load(u + i);
        const F U = v ? x / sqrt(square(io.load(v + i), x)) : x * io.load(factor + i);
        sums[0][decltype(k)::value] = sums[0][decltype(k)::value] + U * U;
      });
      of_updates += sum((sums[0][0] + sums[0][1]) + (sums[0][2] + sums[0][3]));
      if (!settings.scale_parameter) return;
      const float* w = wide.floats(begin, n, w_scratch);
      sweep(n, [&](auto io, std::int64_t i, auto k) BOOST_EXT_INLINE_LAMBDA {
        const F x = io.load(w + i);
        sums[1][decltype(k)::value] = sums[1][decltype(k)::value] + x * x;
      });
      of_weights += sum((sums[1][0] + sums[1][1]) + (sums[1][2] + sums[1][3]));
    });
  }

  Update decide(double of_updates, double of_weights) const {
    const auto n = static_cast<double>(size);
    const double over = __builtin_sqrt(of_updates / n) / settings.clip_threshold;
    const double rms = __builtin_sqrt(of_weights / n);
    double a = static_cast<double>(rate);
    if (settings.scale_parameter) a *= rms < settings.eps2 ? settings.eps2 : rms;
    return {static_cast<float>(over <= 1 ? a : a / over), static_cast<float>(a * static_cast<double>(decay))};
  }

  void update(const Stretch& part, const Update& by) const {
    const auto kept = static_cast<float>(settings.beta1), added = static_cast<float>(1 - settings.beta1);
    chunks(part, [&](std::int64_t begin, std::int64_t n, const float* u, const float* factor) {
      float w_scratch[kChunk], v_scratch[kChunk], m_scratch[kChunk];
      float* w = wide.floats(begin, n, w_scratch);
      float* v = factored ? nullptr : as_floats(squares, begin, n, v_scratch);
      float* m = moments ? as_floats(*moments, begin, n, m_scratch) : nullptr;
      const bool saturates = v == v_scratch;
      sixteens(n, [&](auto io, std::int64_t i) BOOST_EXT_INLINE_LAMBDA {
        F step = io.load(u + i);
        if (v) {
          const F V = square(io.load(v + i), step);
          io.store(v + i, saturates ? in_half(V) : V);
          step = step / sqrt(V);
        } else {
          step = step * io.load(factor + i);
        }
        step = by.coefficient * step;
        if (m) {
          step = kept * io.load(m + i) + added * step;
          io.store(m + i, step);
        }
        const F old = io.load(w + i);
        io.store(w + i, by.shrink != 0 ? old - by.shrink * old - step : old - step);
      });
      if (v == v_scratch) typed(squares, [&](auto* p) { convert(v, p + begin, n); });
      if (m == m_scratch) typed(*moments, [&](auto* p) { convert(m, p + begin, n); });
      wide.store(w, begin, n);
    });
  }

  // V of elements that have no factors.
  BOOST_EXT_INLINE F square(F old, F u) const {
    const F now = u * u + all(static_cast<float>(settings.eps1));
    return static_cast<float>(keep) * old + static_cast<float>(1 - keep) * now;
  }
  static BOOST_EXT_INLINE F in_half(F v) {
    const F top = all(65504), inf = all(__builtin_inff());
    return where_less(top, where_equal(v, inf, all(0), v), top, v);
  }

  // The ready gradient u of n <= kChunk elements.
  void gradient(std::int64_t begin, std::int64_t n, float* u) const {
    typed(grads, [&](auto* p) {
      sixteens(
          n, [&](auto io, std::int64_t i) BOOST_EXT_INLINE_LAMBDA { io.store(u + i, scale * io.load(p + begin + i)); });
    });
    if (!means) return;
    std::int64_t row = begin / channel, at = begin % channel;
    for (std::int64_t k = 0; k < n; ++row, at = 0) {
      const std::int64_t length = smaller(channel - at, n - k);
      float* x = u + k;
      const F mean = all(means[row]);
      sixteens(length,
               [&](auto io, std::int64_t i) BOOST_EXT_INLINE_LAMBDA { io.store(x + i, io.load(x + i) - mean); });
      k += length;
    }
  }

  static float mean_of(const float* x, std::int64_t n) {
    D wide{};
    double rest = 0;
    std::int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) wide = wide + widen(load(x + i));
    const double lanes = i > 0 ? sum(wide) : 0;
    for (; i < n; ++i) rest += static_cast<double>(x[i]);
    return static_cast<float>((lanes + rest) / static_cast<double>(n));
  }

  // Where an element lies: its row among those from the first element on, its row in its matrix, its column in its
  // row, and where its matrix begins among the columns.
  struct Place {
    std::int64_t row, i, j, columns;
  };
  Place place(std::int64_t begin) const {
    return factored ? Place{0, begin / width % height, begin % width, 0} : Place{0, 0, 0, 0};
  }
  // Elements at a time: whole rows, if they fit.
  std::int64_t chunk() const { return factored && width <= kChunk ? kChunk / width * width : kChunk; }

  // body(At<w>, k, length, row, column) for the elements k .. k + length of each row among n; w is the width where the
  // compiler is to know it: narrow rows are most of the work of a small convolution.
  template <class Body> BOOST_EXT_INLINE void each_row(Place& at, std::int64_t n, Body body) const {
    switch (width) {
      case 1:
        return each_row_of<1>(at, n, body);
      case 2:
        return each_row_of<2>(at, n, body);
      case 3:
        return each_row_of<3>(at, n, body);
      case 5:
        return each_row_of<5>(at, n, body);
      case 7:
        return each_row_of<7>(at, n, body);
      default:
        return each_row_of<0>(at, n, body);
    }
  }
  template <int w, class Body> BOOST_EXT_INLINE void each_row_of(Place& at, std::int64_t n, Body body) const {
    const std::int64_t wide = w > 0 ? w : width;
    for (std::int64_t k = 0; k < n;) {
      const std::int64_t length = w > 0 ? w : smaller(wide - at.j, n - k);
      body(At<w>{}, k, length, at.row, at.columns + at.j);
      k += length;
      if (w == 0 && (at.j += length) < wide) return;  // the row goes on in the next chunk
      at.j = 0;
      ++at.row;
      if (++at.i == height) at.i = 0, at.columns += wide;
    }
  }

  // Adds u^2 to the columns; the sum of the row is returned.
  template <int w> static BOOST_EXT_INLINE double add_row(const float* u, std::int64_t n, double* of_columns) {
    D row{};
    double rest = 0;
    std::int64_t j = 0;
    for (; w == 0 && j + kLanes <= n; j += kLanes) {
      const D x = widen(load(u + j));
      const D squared = x * x;
      row = row + squared;
      store(of_columns + j, load(of_columns + j) + squared);
    }
    for (; j < (w > 0 ? w : n); ++j) {
      const double squared = static_cast<double>(u[j]) * static_cast<double>(u[j]);
      rest += squared;
      of_columns[j] += squared;
    }
    return w > 0 || n < kLanes ? rest : sum(row) + rest;
  }

  // average = b average + (1-b) (sum * to_mean + eps1)
  void move(float* average, std::int64_t n, const double* sums, std::int64_t parts, std::int64_t from_one_to_next,
            std::int64_t from_part_to_next, double to_mean) const {
    for (std::int64_t i = 0; i < n; ++i) {
      double total = 0;
      for (std::int64_t k = 0; k < parts; ++k) total += sums[i * from_one_to_next + k * from_part_to_next];
      const double mean = total * to_mean + settings.eps1;
      average[i] = static_cast<float>(keep * static_cast<double>(average[i]) + (1 - keep) * mean);
    }
  }

  // body(begin, n, u, factor) for each chunk; factor is 1/sqrt(V) of factored tensors.
  template <class Body> void chunks(const Stretch& part, Body body) const {
    float u[kChunk], factor[kChunk];
    Place at = place(part.begin);
    for (std::int64_t done = 0; done < part.count; done += chunk()) {
      const std::int64_t n = smaller(part.count - done, chunk());
      gradient(part.begin + done, n, u);
      if (factored) {
        each_row(at, n,
                 [&](auto constant, std::int64_t k, std::int64_t length, std::int64_t row,
                     std::int64_t column) BOOST_EXT_INLINE_LAMBDA {
                   multiply<decltype(constant)::value>(part.of_rows[row], part.of_columns + column, length, factor + k);
                 });
      }
      body(part.begin + done, n, u, factor);
    }
  }

  template <int w> static BOOST_EXT_INLINE void multiply(float a, const float* b, std::int64_t n, float* out) {
    std::int64_t k = 0;
    for (; w == 0 && k + kLanes <= n; k += kLanes) store(out + k, a * load(b + k));
    for (; k < (w > 0 ? w : n); ++k) out[k] = a * b[k];
  }
};

}  // namespace boost_ext::cpu::BOOST_EXT_ISA
