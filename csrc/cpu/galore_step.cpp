#include "ops/galore_step.h"

#include "cpu/matrix_rows.h"
#include "cpu/products.h"
#include "ops/covariance.h"
#include "ops/philox.h"

namespace boost_ext::cpu::BOOST_EXT_ISA {
namespace {

constexpr std::int64_t kAlone = 65536;           // up to so many elements a matrix is one thread's
constexpr std::int64_t kStrip = 16 * kTileRows;  // rows of a tall matrix that are one unit of work
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

// The step of a matrix by two products, of factors rounded to bfloat16 if kNarrow: P is found in float32. Rows of a
// tall matrix are the left factor of the first one, columns of a wide one the right factor. What is a factor in each
// unit of work is packed once.
template <bool kNarrow> class Matrix {
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
        unit_(wide_ ? smaller(kGroup, padded<float>(quotient_up(channels_, 2 * threads))) : kStrip),
        basis_(static_cast<float*>(step.own[t].data)),
        first_(wide_ ? rank_ * depth_ : words<kNarrow>(depth_) * padded<float>(rank_)),
        second_(wide_ ? left_room(depth_) : words<kNarrow>(rank_) * padded<float>(depth_)),
        means_(step.centralize[t] ? rows_ : 0),
        adam_(step.settings->step) {}

  void run() {
    if (s_.centralize[t_]) find_means(s_.grads[t_], s_.scale[t_], threads_, means_.get());
    if ((s_.settings->step.step - 1) % s_.settings->update_gap == 0) refresh();
    const std::int64_t rows = wide_ ? kStrip : kSlab;  // whole tiles of a left factor, whole slabs of panels
    on_threads(threads_, depth_ * rank_, quotient_up(depth_, rows), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t k = begin * rows; k < smaller(end * rows, depth_); k += rows) {
        pack(k, smaller(rows, depth_ - k));
      }
    });
    on_threads(threads_, channels_ * depth_ * (4 + rank_ / 4), quotient_up(channels_, unit_),
               [&](std::int64_t begin, std::int64_t end) {
                 Unit unit(*this);
                 for (std::int64_t k = begin; k < end; ++k) {
                   step(k * unit_, smaller(unit_, channels_ - k * unit_), unit);
                 }
               });
  }

 private:
  // What a thread works in: panels of u, or its rows; its projection, in rows and as a factor; rows of the step.
  struct Unit {
    std::int64_t stride, small_stride;
    Scratch<float> ready, small, factor, lines;
    ProductBuffers buffers;
    explicit Unit(const Matrix& m)
        : stride(m.wide_ ? m.unit_ : padded<float>(m.depth_)),
          small_stride(m.wide_ ? m.unit_ : padded<float>(m.rank_)),
          ready((m.wide_ ? kRowWords<kNarrow> : kStrip) * stride),
          small((m.wide_ ? up_to(kTileRows, m.rank_) : kStrip) * small_stride),
          factor(m.wide_ ? words<kNarrow>(m.rank_) * stride : m.left_room(kStrip)),
          lines(kTileRows * stride),
          buffers(m.wide_ ? m.rank_ : kStrip) {}
  };

  // Of a left factor of `rank_` columns, in slabs.
  std::int64_t left_room(std::int64_t rows) const {
    return quotient_up(rank_, kSlab) * up_to(kTileRows, rows) * kRowWords<kNarrow>;
  }

  // `some` rows of P, from k on, for both products.
  void pack(std::int64_t k, std::int64_t some) {
    constexpr std::int64_t kWide = kTileColumns<float>;
    const float* const rows = basis_ + k * rank_;
    if (wide_) {
      transpose(rows, rank_, some, rank_, first_.get() + k, depth_);
      return pack_slabs(rows, rank_, some, second_.get() + k * kRowWords<kNarrow>, depth_);
    }
    const std::int64_t width = padded<float>(rank_);
    for (std::int64_t j = 0; j < width; j += kWide) {
      pack_rows<kNarrow>(rows + j, rank_, some, rank_ - j, first_.get() + panel_place<kNarrow>(k, some, width, j));
    }
    for (std::int64_t s = 0; s < rank_; s += kSlab) {
      const std::int64_t count = smaller(kSlab, rank_ - s);
      for (std::int64_t j = 0; j < some; j += kWide) {
        float* const panel = second_.get() + panel_place<kNarrow>(s, count, padded<float>(depth_), k + j);
        pack_columns<kNarrow>(rows + j * rank_ + s, rank_, count, some - j, panel);
      }
    }
  }
  // Some rows of a left factor that has `all` of them.
  void pack_slabs(const float* from, std::int64_t stride, std::int64_t rows, float* left, std::int64_t all) const {
    for (std::int64_t s = 0; s < rank_; s += kSlab, left += up_to(kTileRows, all) * kRowWords<kNarrow>) {
      pack_left<kNarrow>(from + s, stride, rows, smaller(kSlab, rank_ - s), left);
    }
  }

  // u of some columns of a row.
  void ready(std::int64_t row, std::int64_t column, std::int64_t count, float* to) {
    const float scale = s_.scale[t_];
    const F off = all(s_.centralize[t_] ? means_[row] : 0);
    typed(s_.grads[t_], [&](const auto* g) {
      sweep<Full>(count, [&](auto io, std::int64_t i, auto) BOOST_EXT_INLINE_LAMBDA {
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
    const std::int64_t stride = unit.small_stride;
    float* const small = unit.small.get();
    if (wide_)
      project_columns(first, count, unit);
    else
      project_rows(first, count, unit);
    const std::int64_t begin = wide_ ? first : first * rank_, between = wide_ ? columns_ : rank_;
    for (std::int64_t i = 0; i < (wide_ ? rank_ : count); ++i) {
      float* const m = static_cast<float*>(s_.first[t_].data) + begin + i * between;
      float* const v = static_cast<float*>(s_.second[t_].data) + begin + i * between;
      float* const r = small + i * stride;
      sixteens<Full>(wide_ ? count : rank_, [&](auto io, std::int64_t c) BOOST_EXT_INLINE_LAMBDA {
        io.store(r + c, adam_(io, m + c, v + c, io.load(r + c)));
      });
    }
    if (!wide_) {
      pack_slabs(small, stride, count, unit.factor.get(), kStrip);
      return step_rows(unit.factor.get(), kStrip, second_.get(), first, count, 0, depth_, unit);
    }
    for (std::int64_t s = 0; s < rank_; s += kSlab) {
      const std::int64_t some = smaller(kSlab, rank_ - s);
      for (std::int64_t j = 0; j < count; j += kTileColumns<float>) {
        float* const panel = unit.factor.get() + panel_place<kNarrow>(s, some, unit.stride, j);
        pack_rows<kNarrow>(small + s * stride + j, stride, some, count - j, panel);
      }
    }
    step_rows(second_.get(), depth_, unit.factor.get(), 0, depth_, first, count, unit);
  }

  // small = P^T u, of some columns.
  void project_columns(std::int64_t first, std::int64_t count, Unit& unit) {
    constexpr std::int64_t kLines = kNarrow ? 2 : 1, kWide = kTileColumns<float>, kAhead = 4;
    float* const lines = unit.lines.get();
    const auto pack = [&](std::int64_t k, std::int64_t some, std::int64_t j, float*) {
      float* const panels = unit.ready.get();
      for (std::int64_t r = 0; j == 0 && r < some; r += kLines) {  // of all columns, while their rows are read
        for (std::int64_t i = r; i < smaller(r + kLines, some); ++i) {
          if (k + i + kAhead < depth_) fetch(s_.grads[t_], (k + i + kAhead) * columns_ + first, count);
          ready(k + i, first, count, lines + (i - r) * unit.stride);
        }
        for (std::int64_t c = 0; c < count; c += kWide) {
          pack_rows<kNarrow>(lines + c, unit.stride, smaller(kLines, some - r), count - c,
                             panels + c * words<kNarrow>(some) + words<kNarrow>(r) * kWide);
        }
      }
      return panels + j * words<kNarrow>(some);
    };
    multiply<kNarrow>(first_.get(), depth_, rank_, depth_, count, pack, unit.buffers, unit.small.get(),
                      unit.small_stride);
  }

  // small = u P, of some rows.
  void project_rows(std::int64_t first, std::int64_t count, Unit& unit) {
    for (std::int64_t i = 0; i < count; ++i) ready(first + i, 0, depth_, unit.ready.get() + i * unit.stride);
    const auto packed = [&](std::int64_t k, std::int64_t some, std::int64_t j, float*) {
      return first_.get() + panel_place<kNarrow>(k, some, padded<float>(rank_), j);
    };
    multiply<kNarrow>(unit.ready.get(), unit.stride, count, depth_, rank_, packed, unit.buffers, unit.small.get(),
                      unit.small_stride);
  }

  // Steps `height` rows of weights, `count` columns of each, along the product of `left`, which has `all` rows, and the
  // panels `right`. What is stepped next is asked for while its step is computed.
  void step_rows(const float* left, std::int64_t all, const float* right, std::int64_t row, std::int64_t height,
                 std::int64_t column, std::int64_t count, Unit& unit) {
    const WideWeights weights(s_.weights[t_], s_.narrow[t_]);
    const auto rate = static_cast<float>(static_cast<double>(s_.lr[t_]) * s_.settings->factor);
    float* const lines = unit.lines.get();
    for (std::int64_t i = 0; i < height; i += kTileRows) {
      const std::int64_t some = smaller(kTileRows, height - i), begin = (row + i) * columns_ + column;
      for (std::int64_t j = 0; j < count; j += kTileColumns<float>) {
        for (std::int64_t m = 0; m < some; ++m) fetch(s_.weights[t_], begin + m * columns_ + j, kTileColumns<float>);
        for (std::int64_t s = 0; s < rank_; s += kSlab) {
          const std::int64_t inner = smaller(kSlab, rank_ - s);
          Tile<float> tile;
          multiply_slab<kNarrow>(left + (s / kSlab * up_to(kTileRows, all) + i) * kRowWords<kNarrow>,
                                 right + panel_place<kNarrow>(s, inner, unit.stride, j), inner, tile);
          add_tile(tile, s == 0, lines + j, unit.stride);
        }
      }
      for (std::int64_t m = 0; m < some; ++m) {
        step_along(weights, begin + m * columns_, count, s_.keep[t_], rate, lines + m * unit.stride);
      }
    }
  }

  const ProjectedStep& s_;
  std::int64_t t_;
  int threads_;
  std::int64_t rows_, columns_;
  bool wide_;
  std::int64_t channels_, depth_, rank_, unit_;  // unit_: columns, or rows of a tall matrix, that are one unit of work
  float* basis_;
  Scratch<float> first_, second_;  // P or its transpose, as a factor of each product
  Scratch<float> means_;           // of rows
  ProjectedAdam adam_;
};

}  // namespace

void galore_step(const Context& context, const ProjectedStep& step) {
  each_tensor(context.threads, step.weights, kAlone, 32, [&](std::int64_t t, int threads) {
    in_precision(context.narrow_products, [&](auto is_narrow) { Matrix<is_narrow>(step, t, threads).run(); });
  });
}

}  // namespace boost_ext::cpu::BOOST_EXT_ISA
