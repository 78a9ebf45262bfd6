#include "ops/orthogonalize.h"

#include "cpu/matrix_rows.h"
#include "cpu/products.h"
#include "cpu/sums_of_products.h"

namespace boost_ext::cpu::BOOST_EXT_ISA {
namespace {

constexpr std::int64_t kStrip = 8 * kTileRows;  // rows of a product that are one unit of work
static_assert(kStrip % kTileColumns<float> == 0);

double norm_of(const View& v) {
  double squares = 0;
  typed(v, [&](const auto* x) { squares = wide_sum_of_squares(x, v.size); });
  return __builtin_sqrt(squares);
}

// A matrix of the iteration, with zeros beyond its columns and room for whole tiles. Rows are no multiple of 1 KB
// apart, since lines a power of two apart drive each other out.
struct Matrix {
  std::int64_t rows, columns, stride;
  float* data = nullptr;
  Matrix(std::int64_t r, std::int64_t c)
      : rows(r), columns(c), stride(padded<float>(c) + (padded<float>(c) % 256 == 0 ? kTileColumns<float> : 0)) {}
  std::int64_t room() const { return up_to(kTileRows, rows) * stride; }
  float* row(std::int64_t i) const { return data + i * stride; }
};

void swap(Matrix& a, Matrix& b) {
  const Matrix c = a;
  a = b;
  b = c;
}

// What product() is given: packs of a right factor, and what is to be done with rows of the result.
template <bool kNarrow> auto rows_of(const Matrix& b) {
  return [&b](std::int64_t k, std::int64_t count, std::int64_t j, float* panel) {
    pack_rows<kNarrow>(b.row(k) + j, b.stride, count, padded<float>(b.columns) - j, panel);
  };
}
template <bool kNarrow> auto columns_of(const Matrix& x) {
  return [&x](std::int64_t k, std::int64_t count, std::int64_t j, float* panel) {
    pack_columns<kNarrow>(x.row(j) + k, x.stride, count, x.rows - j, panel);
  };
}
auto nothing() {
  return [](std::int64_t, std::int64_t, std::int64_t) {};
}

// Of factors rounded to bfloat16, if kNarrow. All that is kept is float32.
template <bool kNarrow> class Iteration {
 public:
  Iteration(const View& matrix, double eps, int threads)
      : threads_(threads),
        x_(least_side(matrix), matrix.size / least_side(matrix)),
        wide_(x_.columns >= 2 * x_.rows),
        narrow_squares_(kNarrow && x_.columns < 6 * x_.rows),
        // At once, since malloc() gives back to the system what is more than twice its largest piece so far.
        memory_((is_kept() ? 2 : 1) * x_.room() + panel_room() + (wide_ ? 4 : 2) * gram().room()),
        free_(memory_.get()),
        panels_(take(panel_room())) {
    x_.data = take(x_.room());
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
        if (rows > columns) transpose(to, columns, some, columns, x_.data + r, x_.stride);
      }
    });
  }

  void run(std::int64_t steps) {
    if (steps == 0) return;
    if (wide_) return run_on_square(steps);
    Matrix a = new_square(), p = new_square(), next = x_;
    if (is_kept()) next.data = take(x_.room());
    for (std::int64_t s = 0; s < steps; ++s) {
      square(x_, a);
      polynomial(a, p);
      product(p, false, rows_of<kNarrow>(x_), next, [&](std::int64_t i, std::int64_t, std::int64_t width) {
        constexpr std::int64_t kWide = kTileColumns<float>;
        const std::int64_t k = i / kSlab * kSlab, some = smaller(kSlab, x_.rows - k);
        for (std::int64_t j = 0; j < width; j += kWide) {
          const float* const before =
              is_kept() ? x_.row(i) + j : panels_ + panel_place<false>(k, some, width, j) + (i - k) * kWide;
          float* const now = next.row(i) + j;
          for (int c = 0; c < kWide; c += kLanes) {
            store(now + c, NewtonSchulz::a * load(before + c) + load(now + c));
          }
        }
      });
      swap(x_, next);
    }
  }

  void write(const View& out) {
    auto* to = static_cast<float*>(out.data);
    const std::int64_t rows = out.rows, columns = out.size / rows;
    if (rows > columns) return transpose(x_.data, x_.stride, columns, rows, to, columns);
    for (std::int64_t r = 0; r < rows; ++r) {
      std::memcpy(to + r * columns, x_.row(r), static_cast<std::size_t>(columns) * sizeof(float));
    }
  }

 private:
  float* take(std::int64_t count) {
    float* const taken = free_;
    free_ += count;
    return taken;
  }
  std::int64_t panel_room() const {
    return larger(words<kNarrow>(x_.columns) * padded<float>(x_.rows),
                  words<kNarrow>(x_.rows) * padded<float>(x_.columns));
  }
  // Whether X stays beside the next one, to be added to it; otherwise it is in the panels.
  bool is_kept() const { return kNarrow && !wide_; }
  Matrix gram() const { return {x_.rows, x_.rows}; }  // without memory
  Matrix new_square() {
    Matrix m = gram();
    m.data = take(m.room());
    return m;
  }

  // What is rounded off A grows twelvefold in each step, and may make its smallest eigenvalues negative. So X is
  // multiplied by its polynomial after some steps, if squares are rounded.
  void run_on_square(std::int64_t steps) {
    constexpr std::int64_t kSteps = 3;
    Matrix a = new_square(), p = new_square(), q = new_square(), next = new_square();
    for (std::int64_t left = steps; left > 0;) {
      const std::int64_t some = narrow_squares_ ? smaller(kSteps, left) : left;
      square(x_, a);
      for (std::int64_t s = 0; s < some; ++s) {
        polynomial(a, s == 0 ? q : p);
        if (s > 0) {
          multiply_squares(p, q, next, nothing());
          swap(q, next);
        }
        if (s + 1 == some) break;
        multiply_squares(a, s == 0 ? q : p, next, nothing());
        multiply_squares(next, s == 0 ? q : p, a, nothing());
      }
      product(q, false, rows_of<kNarrow>(x_), x_, nothing());
      left -= some;
    }
  }

  // out = a b by strips, from the diagonal on if it is symmetric, where the rest is its transpose. pack(first, count,
  // column, panel) makes panels of b, all of them before out is written; then(row, first, count) is called on what is
  // done of each row, from a place divisible by kLanes.
  template <bool kWords = kNarrow, class Pack, class Then>
  void product(Matrix& a, bool symmetric, Pack pack, Matrix& out, Then then) {
    const std::int64_t inner = a.columns, width = padded<float>(out.columns);
    const std::int64_t work = out.rows * width * (4 + inner / 8);
    on_threads(threads_, inner * width, quotient_up(inner, kSlab), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t k = begin * kSlab; k < smaller(end * kSlab, inner); k += kSlab) {
        const std::int64_t some = smaller(kSlab, inner - k);
        for (std::int64_t j = 0; j < width; j += kTileColumns<float>) {
          pack(k, some, j, panels_ + panel_place<kWords>(k, some, width, j));
        }
      }
    });
    on_threads(threads_, work, quotient_up(out.rows, kStrip), [&](std::int64_t begin, std::int64_t end) {
      ProductBuffers buffers(kStrip);
      for (std::int64_t row = begin * kStrip; row < smaller(end * kStrip, out.rows); row += kStrip) {
        const std::int64_t first = symmetric ? row : 0, rows = smaller(kStrip, out.rows - row);
        const auto packed = [&](std::int64_t k, std::int64_t count, std::int64_t j, float*) {
          return panels_ + panel_place<kWords>(k, count, width, first + j);
        };
        multiply<kWords>(a.row(row), a.stride, rows, inner, width - first, packed, buffers, out.row(row) + first,
                         out.stride, symmetric);
        for (std::int64_t i = row; i < row + rows; ++i) {
          const std::int64_t from = symmetric ? i / kLanes * kLanes : 0;
          then(i, from, width - from);
        }
        for (std::int64_t i = row; symmetric && i < row + rows; i += kSquare) {
          const std::int64_t end = smaller(i + kSquare, row + rows);
          for (std::int64_t m = i; m < end; ++m) {
            for (std::int64_t n = m + 1; n < end; ++n) out.row(n)[m] = out.row(m)[n];
          }
          transpose(out.row(i) + end, out.stride, end - i, out.rows - end, out.row(end) + i, out.stride);
        }
      }
    });
  }

  // a = x x^T
  void square(Matrix& x, Matrix& a) { product(x, true, columns_of<kNarrow>(x), a, nothing()); }

  // out = a I + b A + c A^2 of a square A; without a I where X is added later.
  void polynomial(Matrix& a, Matrix& out) {
    const float unit = wide_ ? NewtonSchulz::a : 0;
    multiply_squares(a, a, out, [&](std::int64_t i, std::int64_t first, std::int64_t count) {
      float* const to = out.row(i) + first;
      const float* const from = a.row(i) + first;
      sweep(count, [&](auto io, std::int64_t j, auto) BOOST_EXT_INLINE_LAMBDA {
        io.store(to + j, NewtonSchulz::b * io.load(from + j) + NewtonSchulz::c * io.load(to + j));
      });
      out.row(i)[i] += unit;
    });
  }

  // Polynomials of one symmetric matrix: their product is symmetric, too.
  template <class Then> void multiply_squares(Matrix& a, Matrix& b, Matrix& out, Then then) {
    if (narrow_squares_)
      product(a, true, rows_of<kNarrow>(b), out, then);
    else
      product<false>(a, true, rows_of<false>(b), out, then);
  }

  int threads_;
  Matrix x_;
  bool wide_;            // the steps run on its Gram matrix
  bool narrow_squares_;  // in bfloat16: in float32 where that takes less than to begin again after kSteps
  Scratch<float> memory_;
  float *free_, *panels_;  // panels of a product's right factor, by slabs
};

}  // namespace

void orthogonalize(const Context& context, Tensors matrices, Tensors out, std::int64_t steps, double eps) {
  each_matrix(context.threads, matrices, steps, [&](std::int64_t t, int threads) {
    in_precision(context.narrow_products, [&](auto is_narrow) {
      Iteration<is_narrow> one(matrices[t], eps, threads);
      one.run(steps);
      one.write(out[t]);
    });
  });
}

}  // namespace boost_ext::cpu::BOOST_EXT_ISA
