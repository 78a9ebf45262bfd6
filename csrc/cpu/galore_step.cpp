#include "ops/galore_step.h"

#include "cpu/matrix_rows.h"
#include "cpu/products.h"
#include "ops/covariance.h"
#include "ops/philox.h"

namespace boost_ext::cpu::BOOST_EXT_ISA {
namespace {

constexpr std::int64_t kAlone = 65536;           // up to so many elements a matrix is one thread's
constexpr std::int64_t kStrip = 16 * kTileRows;  // columns, or rows of a tall matrix, that are one unit of work
constexpr double kShift = 1e-6;                  // of C, whose trace is 1
constexpr int kSweeps = 12;                      // of rotations, at most
constexpr double kRotated = 1e-10;               // an element that small is left where it is
static_assert(kStrip % kTileColumns<float> == 0);

// out = a b of matrices in rows.
void product(const float* a, std::int64_t a_stride, std::int64_t rows, std::int64_t inner, const float* b,
             std::int64_t b_stride, std::int64_t columns, ProductBuffers& buffers, float* out, std::int64_t stride) {
  const auto pack = [=](std::int64_t k, std::int64_t count, std::int64_t j, float* panel) {
    return pack_panel(b + k * b_stride + j, b_stride, count, columns - j, 1, panel);
  };
  multiply(a, a_stride, rows, inner, columns, pack, buffers, out, stride);
}

double dot(const double* a, const double* b, std::int64_t n) {
  D total = {};
  for (std::int64_t i = 0; i < n; i += kLanes) total = total + load(a + i) * load(b + i);
  return sum(total);
}
// to += factor from
void add_scaled(double* to, const double* from, double factor, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] += factor * from[i];
}

// The leading eigenvectors of a symmetric matrix of trace 1 without negative eigenvalues. Vectors are rows, with zeros
// up to whole panels.
class Subspace {
 public:
  Subspace(const double* matrix, double scale, std::int64_t extent, std::int64_t count, int threads)
      : threads_(threads),
        d_(extent),
        count_(count),
        k_(smaller(count + kGaloreExtra, extent)),
        stride_(padded<float>(extent)),
        matrix_(d_ * d_),
        narrow_(k_ * stride_),
        product_(up_to(kTileRows, k_) * stride_),
        q_(k_ * stride_),
        small_(k_ * k_),
        turns_(k_ * k_) {
    for (std::int64_t i = 0; i < d_ * d_; ++i) matrix_[i] = static_cast<float>(scale * matrix[i]);
  }

  // `basis` gets `count` columns.
  void run(const DropoutKey& key, float* basis) {
    draw(key);
    orthonormalize();
    for (int i = 0; i < kGaloreIterations; ++i) {
      apply();
      for (std::int64_t n = 0; n < k_ * stride_; ++n) q_[n] = static_cast<double>(product_[n]) + kShift * q_[n];
      orthonormalize();
    }
    apply();
    project();
    diagonalize();
    write(basis);
  }

 private:
  // Numbers from -1 to 1, none of them 0.
  void draw(const DropoutKey& key) {
    const PhiloxRounds rounds(key.seed);
    std::uint32_t word[4];
    for (std::int64_t i = 0, n = 0; i < k_; ++i) {
      for (std::int64_t c = 0; c < stride_; ++c) {
        q_[i * stride_ + c] = 0;
        if (c >= d_) continue;
        if (n % 4 == 0) philox(rounds, key.draw, key.stream, static_cast<std::uint64_t>(n / 4), word);
        q_[i * stride_ + c] = static_cast<double>(word[n++ % 4] | 1u) / 0x1p31 - 1;
      }
    }
  }

  // Modified Gram-Schmidt.
  void orthonormalize() {
    for (std::int64_t j = 0; j < k_; ++j) {
      double* const q = q_.get() + j * stride_;
      const double size = 1 / square_root(dot(q, q, stride_));
      for (std::int64_t c = 0; c < stride_; ++c) q[c] *= size;
      const std::int64_t left = k_ - j - 1;
      on_threads(threads_, left * d_ / 2, left, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
          double* const other = q + (1 + i) * stride_;
          add_scaled(other, q, -dot(q, other, stride_), stride_);
        }
      });
    }
  }

  // product = q C
  void apply() {
    for (std::int64_t n = 0; n < k_ * stride_; ++n) narrow_[n] = static_cast<float>(q_[n]);
    on_threads(threads_, d_ * d_ * (1 + k_ / 8), quotient_up(d_, kStrip), [&](std::int64_t begin, std::int64_t end) {
      ProductBuffers buffers(k_);
      for (std::int64_t c = begin * kStrip; c < smaller(end * kStrip, d_); c += kStrip) {
        product(narrow_.get(), stride_, k_, d_, matrix_.get() + c, d_, smaller(kStrip, d_ - c), buffers,
                product_.get() + c, stride_);
      }
    });
  }

  // small = q C q^T
  void project() {
    on_threads(threads_, k_ * k_ * d_ / 4, k_, [&](std::int64_t begin, std::int64_t end) {
      Scratch<double> line(stride_);
      for (std::int64_t i = begin; i < end; ++i) {
        for (std::int64_t c = 0; c < stride_; ++c) line[c] = static_cast<double>(product_[i * stride_ + c]);
        for (std::int64_t j = 0; j <= i; ++j) {
          small_[i * k_ + j] = small_[j * k_ + i] = dot(line.get(), q_.get() + j * stride_, stride_);
        }
      }
    });
  }

  // Jacobi's rotations, row by row: small becomes diagonal, turns gets its eigenvectors.
  void diagonalize() {
    for (std::int64_t i = 0; i < k_ * k_; ++i) turns_[i] = i % (k_ + 1) == 0 ? 1 : 0;
    bool rotated = true;
    for (int sweep = 0; sweep < kSweeps && rotated; ++sweep) {
      rotated = false;
      for (std::int64_t p = 0; p < k_; ++p) {
        for (std::int64_t q = p + 1; q < k_; ++q) {
          const double off = small_[p * k_ + q];
          if (off <= kRotated && off >= -kRotated) continue;
          rotate(p, q, off);
          rotated = true;
        }
      }
    }
  }
  void rotate(std::int64_t p, std::int64_t q, double off) {
    const double half = (small_[q * k_ + q] - small_[p * k_ + p]) / (2 * off), size = half < 0 ? -half : half;
    const double tangent = (half < 0 ? -1 : 1) / (size + square_root(half * half + 1));
    const double cosine = 1 / square_root(tangent * tangent + 1), sine = tangent * cosine;
    const double first = small_[p * k_ + p] - tangent * off, second = small_[q * k_ + q] + tangent * off;
    turn(small_.get() + p * k_, small_.get() + q * k_, cosine, sine);
    turn(turns_.get() + p * k_, turns_.get() + q * k_, cosine, sine);
    for (std::int64_t i = 0; i < k_; ++i) {
      small_[i * k_ + p] = small_[p * k_ + i];
      small_[i * k_ + q] = small_[q * k_ + i];
    }
    small_[p * k_ + p] = first;
    small_[q * k_ + q] = second;
    small_[p * k_ + q] = small_[q * k_ + p] = 0;
  }
  void turn(double* __restrict a, double* __restrict b, double cosine, double sine) const {
    for (std::int64_t i = 0; i < k_; ++i) {
      const double x = a[i], y = b[i];
      a[i] = cosine * x - sine * y;
      b[i] = sine * x + cosine * y;
    }
  }

  void write(float* basis) {
    Scratch<std::int64_t> order(k_);
    for (std::int64_t i = 0; i < k_; ++i) {  // by falling values
      std::int64_t at = i;
      for (; at > 0 && small_[order[at - 1] * (k_ + 1)] < small_[i * (k_ + 1)]; --at) order[at] = order[at - 1];
      order[at] = i;
    }
    on_threads(threads_, count_ * k_ * d_ / 4, count_, [&](std::int64_t begin, std::int64_t end) {
      Scratch<double> vector(stride_);
      for (std::int64_t j = begin; j < end; ++j) {
        for (std::int64_t c = 0; c < stride_; ++c) vector[c] = 0;
        for (std::int64_t i = 0; i < k_; ++i) {
          add_scaled(vector.get(), q_.get() + i * stride_, turns_[order[j] * k_ + i], stride_);
        }
        double largest = 0;
        for (std::int64_t c = 0; c < d_; ++c) {
          if (vector[c] * vector[c] > largest * largest) largest = vector[c];
        }
        const double sign = largest < 0 ? -1 : 1;
        for (std::int64_t c = 0; c < d_; ++c) basis[c * count_ + j] = static_cast<float>(sign * vector[c]);
      }
    });
  }

  int threads_;
  std::int64_t d_, count_, k_, stride_;
  Scratch<float> matrix_, narrow_, product_;
  Scratch<double> q_, small_, turns_;
};

class Matrix {
 public:
  Matrix(const ProjectedStep& step, std::int64_t t, int threads)
      : s_(step),
        t_(t),
        threads_(threads),
        rows_(step.weights[t].rows),
        columns_(step.weights[t].size / rows_),
        wide_(rows_ <= columns_),
        channels_(wide_ ? columns_ : rows_),
        depth_(wide_ ? rows_ : columns_),
        rank_(step.own[t].size / depth_),
        basis_(static_cast<float*>(step.own[t].data)),
        across_(rank_ * depth_),
        means_(step.centralize[t] ? rows_ : 0),
        adam_(step.settings->step) {}

  void run() {
    if (s_.centralize[t_]) find_means(s_.grads[t_], s_.scale[t_], threads_, means_.get());
    if ((s_.settings->step.step - 1) % s_.settings->update_gap == 0) refresh();
    transpose(basis_, rank_, depth_, rank_, across_.get(), depth_);
    on_threads(threads_, channels_ * depth_ * (4 + rank_ / 4), quotient_up(channels_, kStrip),
               [&](std::int64_t begin, std::int64_t end) {
                 Unit unit(*this);
                 for (std::int64_t k = begin; k < end; ++k) {
                   step(k * kStrip, smaller(kStrip, channels_ - k * kStrip), unit);
                 }
               });
  }

 private:
  // What a thread works in: a strip of u, which its step takes the place of, and its projection.
  struct Unit {
    std::int64_t stride, small_stride;
    Scratch<float> strip, projected;
    ProductBuffers buffers;
    explicit Unit(const Matrix& m)
        : stride(m.wide_ ? kStrip : padded<float>(m.depth_)),
          small_stride(m.wide_ ? kStrip : padded<float>(m.rank_)),
          strip((m.wide_ ? up_to(kTileRows, m.depth_) : kStrip) * stride),
          projected((m.wide_ ? up_to(kTileRows, m.rank_) : kStrip) * small_stride),
          buffers(m.wide_ ? m.depth_ : kStrip) {}
  };

  // u of some columns of a row.
  void ready(std::int64_t row, std::int64_t column, std::int64_t count, float* to) {
    const float scale = s_.scale[t_];
    const F off = all(s_.centralize[t_] ? means_[row] : 0);
    typed(s_.grads[t_], [&](const auto* g) {
      sweep(count, [&](auto io, std::int64_t i, auto) BOOST_EXT_INLINE_LAMBDA {
        io.store(to + i, scale * io.load(g + row * columns_ + column + i) - off);
      });
    });
  }

  void refresh() {
    Scratch<double> squared(depth_ * depth_);
    square(squared.get());
    double trace = 0;
    for (std::int64_t i = 0; i < depth_; ++i) trace += squared[i * (depth_ + 1)];
    if (!(trace <= 1e300)) {  // what follows from inf or nan
      for (std::int64_t i = 0; i < depth_ * rank_; ++i) basis_[i] = __builtin_nanf("");
      return;
    }
    Subspace(squared.get(), trace > 0 ? 1 / trace : 0, depth_, rank_, threads_).run(s_.keys[t_], basis_);
  }

  // The products of u with itself along the longer side.
  void square(double* to) {
    Scratch<float> lines(channels_ * depth_);
    on_threads(threads_, 4 * rows_ * columns_, quotient_up(rows_, kSquare), [&](std::int64_t begin, std::int64_t end) {
      Scratch<float> some(wide_ ? kSquare * columns_ : 0);
      for (std::int64_t r = begin * kSquare; r < smaller(end * kSquare, rows_); r += kSquare) {
        const std::int64_t count = smaller(kSquare, rows_ - r);
        float* const rows = wide_ ? some.get() : lines.get() + r * columns_;
        for (std::int64_t i = 0; i < count; ++i) ready(r + i, 0, columns_, rows + i * columns_);
        if (wide_) transpose(rows, columns_, count, columns_, lines.get() + r, depth_);
      }
    });
    View x, out;
    x.data = lines.get();
    x.size = channels_ * depth_;
    x.rows = channels_;
    out.data = to;
    out.dtype = DType::f64;
    out.size = depth_ * depth_;
    out.rows = 1;
    Patches dense{};
    dense.n = channels_;
    dense.c = depth_;
    dense.h = dense.w = dense.kh = dense.kw = dense.oh = dense.ow = dense.sh = dense.sw = dense.dh = dense.dw = 1;
    Context context;
    context.threads = threads_;
    covariance(context, x, dense, 1, depth_, out);
  }

  // Of some columns, or rows of a tall matrix.
  void step(std::int64_t first, std::int64_t count, Unit& unit) {
    const std::int64_t row = wide_ ? 0 : first, column = wide_ ? first : 0;
    const std::int64_t height = wide_ ? depth_ : count, width = wide_ ? count : depth_;
    float* const strip = unit.strip.get();
    float* const small = unit.projected.get();
    for (std::int64_t i = 0; i < height; ++i) ready(row + i, column, width, strip + i * unit.stride);
    if (wide_)
      product(across_.get(), depth_, rank_, depth_, strip, unit.stride, count, unit.buffers, small, unit.small_stride);
    else
      product(strip, unit.stride, count, depth_, basis_, rank_, rank_, unit.buffers, small, unit.small_stride);
    const std::int64_t begin = wide_ ? first : first * rank_, stride = wide_ ? columns_ : rank_;
    for (std::int64_t i = 0; i < (wide_ ? rank_ : count); ++i) {
      float* const m = static_cast<float*>(s_.first[t_].data) + begin + i * stride;
      float* const v = static_cast<float*>(s_.second[t_].data) + begin + i * stride;
      float* const r = small + i * unit.small_stride;
      sixteens(wide_ ? count : rank_, [&](auto io, std::int64_t c) BOOST_EXT_INLINE_LAMBDA {
        io.store(r + c, adam_(io, m + c, v + c, io.load(r + c)));
      });
    }
    if (wide_)
      product(basis_, rank_, depth_, rank_, small, unit.small_stride, count, unit.buffers, strip, unit.stride);
    else
      product(small, unit.small_stride, count, rank_, across_.get(), depth_, depth_, unit.buffers, strip, unit.stride);
    const WideWeights weights(s_.weights[t_], s_.narrow[t_]);
    const auto rate = static_cast<float>(static_cast<double>(s_.lr[t_]) * s_.settings->factor);
    for (std::int64_t i = 0; i < height; ++i) {
      step_along(weights, (row + i) * columns_ + column, width, s_.keep[t_], rate, strip + i * unit.stride);
    }
  }

  const ProjectedStep& s_;
  std::int64_t t_;
  int threads_;
  std::int64_t rows_, columns_;
  bool wide_;
  std::int64_t channels_, depth_, rank_;
  float* basis_;
  Scratch<float> across_, means_;  // the basis transposed; of rows
  ProjectedAdam adam_;
};

}  // namespace

void galore_step(const Context& context, const ProjectedStep& step) {
  each_tensor(context.threads, step.weights, kAlone, 32,
              [&](std::int64_t t, int threads) { Matrix(step, t, threads).run(); });
}

}  // namespace boost_ext::cpu::BOOST_EXT_ISA
