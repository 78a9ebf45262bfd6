#include "ops/orthogonalize.h"

#include "cpu/products.h"
#include "cpu/sums_of_products.h"

namespace boost_ext::cpu::BOOST_EXT_ISA {
namespace {

constexpr std::int64_t kStrip = 128;  // rows of a product that are one unit of work
static_assert(kStrip % kTileColumns<float> == 0 && kStrip % kTileRows == 0);

double norm_of(const View& v) {
  double squares = 0;
  typed(v, [&](const auto* x) { squares = wide_sum_of_squares(x, v.size); });
  return __builtin_sqrt(squares);
}

// A matrix of the iteration, with zeros beyond its columns and room for whole tiles.
struct Matrix {
  std::int64_t rows, columns, stride;
  Scratch<float> memory;
  float* data;
  Matrix(std::int64_t r, std::int64_t c)
      : rows(r), columns(c), stride(padded<float>(c)), memory(up_to(kTileRows, r) * stride), data(memory.get()) {}
  float* row(std::int64_t i) { return data + i * stride; }
};

// The elements of two matrices of one size that live as long.
void swap(Matrix& a, Matrix& b) {
  float* const data = a.data;
  a.data = b.data;
  b.data = data;
}

class Iteration {
 public:
  Iteration(const View& matrix, double eps, int threads)
      : threads_(threads), x_(least_side(matrix), matrix.size / least_side(matrix)), result_(x_.rows, x_.columns) {
    const std::int64_t rows = matrix.rows, columns = matrix.size / rows;
    const auto scale = static_cast<float>(1 / (norm_of(matrix) + eps));
    for (std::int64_t i = 0; i < x_.rows; ++i) {
      for (std::int64_t j = x_.columns; j < x_.stride; ++j) x_.row(i)[j] = 0;
    }
    typed(matrix, [&](const auto* from) {
      Scratch<float> lines(kSquare * columns);
      for (std::int64_t r = 0; r < rows; r += kSquare) {
        const std::int64_t some = smaller(kSquare, rows - r);
        float* const to = rows > columns ? lines.get() : x_.row(r);
        const std::int64_t stride = rows > columns ? columns : x_.stride;
        for (std::int64_t k = 0; k < some; ++k) {
          sweep(columns, [&](auto io, std::int64_t i, auto) BOOST_EXT_INLINE_LAMBDA {
            io.store(to + k * stride + i, scale * io.load(from + (r + k) * columns + i));
          });
        }
        if (rows <= columns) continue;
        each_in_squares(columns, some, [&](std::int64_t i, std::int64_t k) { x_.row(i)[r + k] = to[k * columns + i]; });
      }
    });
  }

  void run(std::int64_t steps) {
    if (steps == 0) return;
    if (x_.columns >= 2 * x_.rows) return run_on_square(steps);
    Matrix a(x_.rows, x_.rows), p(x_.rows, x_.rows);
    for (std::int64_t s = 0; s < steps; ++s) {
      square(x_, a);
      polynomial(a, p);
      multiply_by(p, x_, result_);
      swap(x_, result_);
    }
  }

  void write(const View& out) {
    auto* to = static_cast<float*>(out.data);
    const std::int64_t rows = out.rows, columns = out.size / rows;
    if (rows > columns) {
      return each_in_squares(columns, rows,
                             [&](std::int64_t i, std::int64_t r) { to[r * columns + i] = x_.row(i)[r]; });
    }
    for (std::int64_t r = 0; r < rows; ++r) {
      std::memcpy(to + r * columns, x_.row(r), static_cast<std::size_t>(columns) * sizeof(float));
    }
  }

 private:
  void run_on_square(std::int64_t steps) {
    const std::int64_t n = x_.rows;
    Matrix a(n, n), p(n, n), q(n, n), next(n, n);
    square(x_, a);
    for (std::int64_t s = 0; s < steps; ++s) {
      polynomial(a, s == 0 ? q : p);
      if (s > 0) {
        multiply_squares(p, q, next);
        swap(q, next);
      }
      if (s + 1 == steps) break;
      multiply_squares(a, s == 0 ? q : p, next);
      multiply_squares(next, s == 0 ? q : p, a);
    }
    multiply_by(q, x_, result_);
    swap(x_, result_);
  }

  // out = a b by strips, from the diagonal on if it is symmetric; then(row, first, count) on what is done of each row,
  // from a place divisible by kLanes.
  template <class Pack, class Then> void product(Matrix& a, bool symmetric, Pack pack, Matrix& out, Then then) {
    const std::int64_t work = out.rows * out.stride * (4 + a.columns / 8);
    on_threads(threads_, work, quotient_up(out.rows, kStrip), [&](std::int64_t begin, std::int64_t end) {
      ProductBuffers buffers(kStrip);
      for (std::int64_t row = begin * kStrip; row < smaller(end * kStrip, out.rows); row += kStrip) {
        const std::int64_t first = symmetric ? row : 0, rows = smaller(kStrip, out.rows - row);
        const auto shifted = [&](std::int64_t k, std::int64_t count, std::int64_t j, float* panel) {
          pack(k, count, first + j, panel);
        };
        multiply(a.row(row), a.stride, rows, a.columns, out.stride - first, shifted, buffers, out.row(row) + first,
                 out.stride, symmetric);
        for (std::int64_t i = row; i < row + rows; ++i) {
          const std::int64_t from = symmetric ? i / kLanes * kLanes : 0;
          then(i, from, out.stride - from);
        }
      }
    });
    if (!symmetric) return;
    for (std::int64_t i = 0; i < out.rows; i += kSquare) {
      for (std::int64_t j = i; j < out.rows; j += kSquare) {
        for (std::int64_t m = i; m < smaller(i + kSquare, out.rows); ++m) {
          for (std::int64_t n = j > m ? j : m; n < smaller(j + kSquare, out.rows); ++n) out.row(n)[m] = out.row(m)[n];
        }
      }
    }
  }

  static auto rows_of(Matrix& b) {
    return [&b](std::int64_t k, std::int64_t count, std::int64_t j, float* panel) {
      pack_panel(b.row(k) + j, b.stride, count, b.stride - j, 1, panel);
    };
  }
  static auto nothing() {
    return [](std::int64_t, std::int64_t, std::int64_t) {};
  }

  // a = x x^T
  void square(Matrix& x, Matrix& a) {
    const auto columns = [&x](std::int64_t k, std::int64_t count, std::int64_t j, float* panel) {
      for (std::int64_t c = 0; c < kTileColumns<float>; ++c) {
        const float* const from = x.row(j + c) + k;
        for (std::int64_t r = 0; r < count; ++r) panel[r * kTileColumns<float> + c] = j + c < x.rows ? from[r] : 0;
      }
    };
    product(x, true, columns, a, nothing());
  }

  // out = a I + b A + c A^2 of a square A; without a I where X is added later.
  void polynomial(Matrix& a, Matrix& out) {
    const float unit = x_.columns >= 2 * x_.rows ? NewtonSchulz::a : 0;
    product(a, true, rows_of(a), out, [&](std::int64_t i, std::int64_t first, std::int64_t count) {
      float* const to = out.row(i) + first;
      const float* const from = a.row(i) + first;
      sweep(count, [&](auto io, std::int64_t j, auto) BOOST_EXT_INLINE_LAMBDA {
        io.store(to + j, NewtonSchulz::b * io.load(from + j) + NewtonSchulz::c * io.load(to + j));
      });
      out.row(i)[i] += unit;
    });
  }

  // Polynomials of one symmetric matrix: their product is symmetric, too.
  void multiply_squares(Matrix& a, Matrix& b, Matrix& out) { product(a, true, rows_of(b), out, nothing()); }

  // out = p x, or a x + p x where p has no a I.
  void multiply_by(Matrix& p, Matrix& x, Matrix& out) {
    const bool add = x_.columns < 2 * x_.rows;
    product(p, false, rows_of(x), out, [&](std::int64_t i, std::int64_t first, std::int64_t count) {
      float* const to = out.row(i) + first;
      const float* const from = x.row(i) + first;
      if (!add) return;
      sweep(count, [&](auto io, std::int64_t j, auto) BOOST_EXT_INLINE_LAMBDA {
        io.store(to + j, NewtonSchulz::a * io.load(from + j) + io.load(to + j));
      });
    });
  }

  int threads_;
  Matrix x_, result_;
};

}  // namespace

void orthogonalize(const Context& context, Tensors matrices, Tensors out, std::int64_t steps, double eps) {
  std::int64_t work = 0;
  for (std::int64_t t = 0; t < matrices.count; ++t) {
    if (!shared_by_threads(matrices[t])) work += work_of(matrices[t], steps);
  }
  on_threads(context.threads, work, matrices.count, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      if (matrices[t].size == 0 || shared_by_threads(matrices[t])) continue;
      Iteration one(matrices[t], eps, 1);
      one.run(steps);
      one.write(out[t]);
    }
  });
  for (std::int64_t t = 0; t < matrices.count; ++t) {
    if (!shared_by_threads(matrices[t])) continue;
    Iteration one(matrices[t], eps, context.threads);
    one.run(steps);
    one.write(out[t]);
  }
}

}  // namespace boost_ext::cpu::BOOST_EXT_ISA
