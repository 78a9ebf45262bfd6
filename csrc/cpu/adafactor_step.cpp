#include "ops/adafactor_step.h"

#include "cpu/adafactor_tensor.h"
#include "cpu/parallel.h"

namespace boost_ext::cpu::BOOST_EXT_ISA {
namespace {

constexpr std::int64_t kBlock = 4096;
// Up to so many elements a tensor is one thread's, which goes over it several times in its cache.
constexpr std::int64_t kAlone = 65536;
// A large matrix is summed in tiles: 64 rows and more of up to 1024 columns, so that their sums are few.
constexpr std::int64_t kTileRows = 64, kTileColumns = 1024, kTile = 16384;

// R and C of large matrices, and their factors. Sums of tiles first, so that threads share a matrix.
void sum_up(const AdaFactorTensor& x, int threads, float* of_rows, float* of_columns) {
  const std::int64_t across = quotient_up(x.width, kTileColumns), tall = larger(kTileRows, kTile / x.width);
  const std::int64_t bands = quotient_up(x.height, tall), matrices = x.size / x.matrix;
  Scratch<double> row_sums(matrices * x.height * across), column_sums(matrices * bands * x.width);
  on_threads(threads, x.size, matrices * bands * across, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t tile = first; tile < last; ++tile) {
      const std::int64_t part = tile % across, band = tile / across % bands, m = tile / across / bands;
      const std::int64_t i = band * tall, j = part * kTileColumns;
      const std::int64_t rows = smaller(tall, x.height - i), columns = smaller(kTileColumns, x.width - j);
      const std::int64_t corner = m * x.matrix + i * x.width + j;
      double* of_row = row_sums.get() + (m * x.height + i) * across + part;
      double* of_column = column_sums.get() + (m * bands + band) * x.width + j;
      for (std::int64_t k = 0; k < columns; ++k) of_column[k] = 0;
      for (std::int64_t k = 0; k < rows; ++k) of_row[k * across] = 0;
      if (across == 1) {
        x.add_squares(corner, rows * columns, j, of_row, of_column);
      } else {
        for (std::int64_t k = 0; k < rows; ++k) {
          x.add_squares(corner + k * x.width, columns, j, of_row + k * across, of_column);
        }
      }
    }
  });
  on_threads(threads, matrices * bands * x.width, matrices, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t m = first; m < last; ++m) {
      x.average(m, 1, row_sums.get() + m * x.height * across, across, column_sums.get() + m * bands * x.width, bands);
      x.factors(m, 1, of_rows + m * x.height, of_columns + m * x.width);
    }
  });
}

// The same for the whole matrices of one unit, which a thread has for itself.
struct Unit {
  double row_sums[kBlock], column_sums[kBlock];
  float of_rows[kBlock], of_columns[kBlock];

  void sum_up(const AdaFactorTensor& x, std::int64_t begin, std::int64_t count) {
    for (std::int64_t i = 0; i < count / x.width; ++i) row_sums[i] = 0;
    for (std::int64_t j = 0; j < count / x.height; ++j) column_sums[j] = 0;
    x.add_squares(begin, count, 0, row_sums, column_sums);
    x.average(begin / x.matrix, count / x.matrix, row_sums, 1, column_sums, 1);
  }
  void find_factors(const AdaFactorTensor& x, std::int64_t begin, std::int64_t count) {
    x.factors(begin / x.matrix, count / x.matrix, of_rows, of_columns);
  }
};

void step_tensor(const AdaFactorStep& step, std::int64_t t, int threads) {
  AdaFactorTensor x(step, t);
  if (x.size == 0) return;
  Scratch<float> means(step.centralize[t] ? x.weights.rows : 0);
  if (step.centralize[t]) x.find_means(threads, means.get());
  // A unit of work is whole matrices, or some elements of a large one, or of a tensor without.
  const bool whole = x.factored && x.matrix <= kBlock, large = x.factored && !whole;
  const std::int64_t of = whole ? x.matrix : large && x.width <= kBlock ? x.width : 1;
  const std::int64_t unit = kBlock / of * of, units = quotient_up(x.size, unit);
  Scratch<float> of_rows(large ? x.size / x.width : 0), of_columns(large ? x.size / x.height : 0);
  if (large) sum_up(x, threads, of_rows.get(), of_columns.get());

  const auto each_unit = [&](bool first, auto body) {
    on_threads(threads, 4 * x.size, units, [&](std::int64_t begin, std::int64_t end) {
      Unit own;
      for (std::int64_t k = begin; k < end; ++k) {
        Stretch at{k * unit, smaller(unit, x.size - k * unit), own.of_rows, own.of_columns};
        if (whole) {
          if (first) own.sum_up(x, at.begin, at.count);
          own.find_factors(x, at.begin, at.count);
        } else if (large) {
          at.of_rows = of_rows.get() + at.begin / x.width;
          at.of_columns = of_columns.get() + at.begin / x.matrix * x.width;
        }
        body(k, at);
      }
    });
  };
  Scratch<double> of_updates(units), of_weights(units);
  each_unit(true, [&](std::int64_t k, const Stretch& at) { x.measure(at, of_updates[k], of_weights[k]); });
  double updates = 0, weights = 0;
  for (std::int64_t k = 0; k < units; ++k) {
    updates += of_updates[k];
    weights += of_weights[k];
  }
  const Update by = x.decide(updates, weights);
  each_unit(false, [&](std::int64_t, const Stretch& at) { x.update(at, by); });
}

}  // namespace

void adafactor_step(const Context& context, const AdaFactorStep& step) {
  each_tensor(context.threads, step.weights, kAlone, 4,
              [&](std::int64_t t, int threads) { step_tensor(step, t, threads); });
}

}  // namespace boost_ext::cpu::BOOST_EXT_ISA
