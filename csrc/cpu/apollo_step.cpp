#include "ops/apollo_step.h"

#include "cpu/matrix_rows.h"
#include "ops/philox.h"

namespace boost_ext::cpu::BOOST_EXT_ISA {
namespace {

// Up to so many elements a matrix is one thread's.
constexpr std::int64_t kAlone = 65536;
// That are projected at a time, a unit of work: sums of columns stay in the first cache.
constexpr std::int64_t kColumns = 512, kRows = 16;
constexpr double kTiny = 1e-30;

double larger(double a, double b) { return a > b ? a : b; }

// What is known of some channels: a channel is a column, or a row of a matrix of more rows than columns.
struct Sums {
  double update = 0, adam = 0, projected = 0, gradient = 0;  // squares
};

class Matrix {
 public:
  Matrix(const ApolloSettings& settings, const ProjectedStep& step, std::int64_t t, int threads)
      : settings_(settings),
        s_(step),
        t_(t),
        threads_(threads),
        rows_(step.weights[t].rows),
        columns_(step.weights[t].size / rows_),
        wide_(rows_ <= columns_),
        channels_(wide_ ? columns_ : rows_),
        depth_(wide_ ? rows_ : columns_),
        rank_(step.first[t].size / channels_),
        block_(apollo_block(rank_)),
        signs_(depth_),
        offsets_(quotient_up(depth_, block_)),
        order_(wide_ ? depth_ : 0),
        ends_(wide_ ? rank_ + 1 : 0),
        factors_(channels_),
        means_(step.centralize[t] ? rows_ : 0),
        adam_(settings.step) {}

  void run() {
    draw();
    if (s_.centralize[t_]) find_means(s_.grads[t_], s_.scale[t_], threads_, means_.get());
    const std::int64_t of = wide_ ? kColumns : kRows, units = quotient_up(channels_, of);
    Scratch<Sums> sums(units);
    on_threads(threads_, channels_ * depth_ * 4, units, [&](std::int64_t begin, std::int64_t end) {
      Unit unit(wide_ ? kColumns : 2 * block_);
      for (std::int64_t k = begin; k < end; ++k) {
        typed(s_.grads[t_],
              [&](const auto* g) { sums[k] = project(g, k * of, smaller(of, channels_ - k * of), unit); });
      }
    });
    const double rate = decide(sums.get(), units);
    for (std::int64_t j = 0; j < channels_; ++j) {
      factors_[j] = static_cast<float>(rate * static_cast<double>(factors_[j]));
    }
    View whole = s_.weights[t_];
    Blocks(Tensors(&whole, 1)).run(threads_, [&](Block at) { update(at); }, 4);
  }

 private:
  // What a thread works in.
  struct Unit {
    Scratch<float> sums;
    double gradient[kColumns], adam[kColumns], projected[kColumns];  // squares of each channel
    explicit Unit(std::int64_t count) : sums(count) {}
  };

  // The basis; for sums of columns the rows that each row of it takes, one after another.
  void draw() {
    const DropoutKey& key = s_.keys[t_];
    const PhiloxRounds rounds(key.seed);
    std::uint32_t word[4];
    for (std::int64_t k = 0; k < depth_; ++k) {
      if (k % 4 == 0) philox(rounds, key.draw, key.stream, static_cast<std::uint64_t>(k / 4), word);
      signs_[k] = word[k % 4] >> 31 != 0 ? -1.0F : 1.0F;
      if (k % block_ == 0) offsets_[k / block_] = (word[k % 4] & 0x7fffffffu) % rank_;
    }
    if (!wide_) return;
    std::int64_t n = 0;
    for (std::int64_t q = 0; q < rank_; ++q) {
      ends_[q] = n;
      for (std::int64_t b = 0; b * block_ < depth_; ++b) {
        const std::int64_t end = smaller((b + 1) * block_, depth_);
        for (std::int64_t k = b * block_ + (q + rank_ - offsets_[b]) % rank_; k < end; k += rank_) order_[n++] = k;
      }
    }
    ends_[rank_] = n;
  }

  float mean(std::int64_t row) { return s_.centralize[t_] ? means_[row] : 0; }

  // R, m, v and the sums of the channels from `first` on; factors_ gets s_j.
  template <class T> Sums project(const T* g, std::int64_t first, std::int64_t count, Unit& unit) {
    for (std::int64_t j = 0; j < smaller(count + kLanes, kColumns); ++j) {
      unit.gradient[j] = unit.adam[j] = unit.projected[j] = 0;  // with those that vectors have beyond the last channel
    }
    if (wide_)
      sum_columns(g, first, count, unit);
    else
      sum_rows(g, first, count, unit);
    Sums sums;
    for (std::int64_t j = 0; j < count; ++j) {
      const float factor =
          static_cast<float>(square_root(unit.adam[j]) / larger(kTiny, square_root(unit.projected[j])));
      factors_[first + j] = factor;
      sums.update += static_cast<double>(factor) * static_cast<double>(factor) * unit.gradient[j];
      sums.adam += unit.adam[j];
      sums.projected += unit.projected[j];
      sums.gradient += unit.gradient[j];
    }
    return sums;
  }

  template <class T> void sum_columns(const T* g, std::int64_t first, std::int64_t count, Unit& unit) {
    float* const sums = unit.sums.get();
    for (std::int64_t q = 0; q < rank_; ++q) {
      std::memset(sums, 0, static_cast<std::size_t>(count) * sizeof(float));
      std::int64_t n = ends_[q];
      for (; n + 4 <= ends_[q + 1]; n += 4) add_rows<4>(g, order_.get() + n, first, count, unit);
      for (; n < ends_[q + 1]; ++n) add_rows<1>(g, order_.get() + n, first, count, unit);
      sixteens(count, [&](auto io, std::int64_t c) BOOST_EXT_INLINE_LAMBDA {
        const F r = io.load(sums + c);
        const D a = widen(adam(io, q * columns_ + first + c, r)), d = widen(r);
        store(unit.adam + c, add_product(load(unit.adam + c), a, a));
        store(unit.projected + c, add_product(load(unit.projected + c), d, d));
      });
    }
  }
  // Squares are float32 over `kCount` rows, as v holds those of the projection, and float64 over all.
  template <int kCount, class T>
  BOOST_EXT_INLINE void add_rows(const T* g, const std::int64_t* rows, std::int64_t first, std::int64_t count,
                                 Unit& unit) {
    const float scale = s_.scale[t_];
    F off[kCount], sign[kCount];
    const T* from[kCount];
    for (int k = 0; k < kCount; ++k) {
      off[k] = all(mean(rows[k]));
      sign[k] = all(signs_[rows[k]]);
      from[k] = g + rows[k] * columns_ + first;
    }
    float* const sums = unit.sums.get();
    double* const squares = unit.gradient;
    sixteens(count, [&](auto io, std::int64_t c) BOOST_EXT_INLINE_LAMBDA {
      F square = all(0), r = all(0);
#pragma GCC unroll 4
      for (int k = 0; k < kCount; ++k) {
        const F u = scale * io.load(from[k] + c) - off[k];
        square = square + u * u;
        r = r + sign[k] * u;
      }
      io.store(sums + c, io.load(sums + c) + r);
      store(squares + c, load(squares + c) + widen(io.only(square)));
    });
  }

  template <class T> void sum_rows(const T* g, std::int64_t first, std::int64_t count, Unit& unit) {
    const float scale = s_.scale[t_];
    const std::int64_t some = up_to(block_, kChunk);
    float* const sums = unit.sums.get();
    for (std::int64_t i = 0; i < count; ++i) {
      const F off = all(mean(first + i));
      const T* const from = g + (first + i) * columns_;
      std::memset(sums, 0, static_cast<std::size_t>(2 * block_) * sizeof(float));
      for (std::int64_t begin = 0; begin < depth_; begin += some) {
        F squares = all(0);
        const std::int64_t end = smaller(begin + some, depth_);
        for (std::int64_t k = begin; k < end; k += block_) {
          float* const to = sums + offsets_[k / block_];
          sixteens(smaller(block_, end - k), [&](auto io, std::int64_t c) BOOST_EXT_INLINE_LAMBDA {
            const F u = io.only(scale * io.load(from + k + c) - off);
            squares = squares + u * u;
            io.store(to + c, io.load(to + c) + io.load(signs_.get() + k + c) * u);
          });
        }
        unit.gradient[i] += sum(squares);
      }
      for (std::int64_t n = block_; n >= rank_; n /= 2) {  // places that are the rank apart
        sixteens(n, [&](auto io, std::int64_t c)
                        BOOST_EXT_INLINE_LAMBDA { io.store(sums + c, io.load(sums + c) + io.load(sums + n + c)); });
      }
      D of_adam = {}, of_projected = {};
      sixteens(rank_, [&](auto io, std::int64_t c) BOOST_EXT_INLINE_LAMBDA {
        const F r = io.load(sums + c);
        const D a = widen(io.only(adam(io, (first + i) * rank_ + c, r))), d = widen(r);
        of_adam = add_product(of_adam, a, a);
        of_projected = add_product(of_projected, d, d);
      });
      unit.adam[i] = sum(of_adam);
      unit.projected[i] = sum(of_projected);
    }
  }

  template <class Io> BOOST_EXT_INLINE F adam(Io io, std::int64_t i, F r) {
    return adam_(io, static_cast<float*>(s_.first[t_].data) + i, static_cast<float*>(s_.second[t_].data) + i, r);
  }

  // What the factors are multiplied with; `last` becomes the norm of this update.
  double decide(const Sums* units, std::int64_t count) {
    Sums whole;
    for (std::int64_t k = 0; k < count; ++k) {
      whole.update += units[k].update;
      whole.adam += units[k].adam;
      whole.projected += units[k].projected;
      whole.gradient += units[k].gradient;
    }
    if (settings_.tensor_wise) {
      const auto factor = static_cast<float>(square_root(whole.adam) / larger(kTiny, square_root(whole.projected)));
      for (std::int64_t j = 0; j < channels_; ++j) factors_[j] = factor;
      whole.update = static_cast<double>(factor) * static_cast<double>(factor) * whole.gradient;
    }
    const double size = square_root(settings_.factor);
    double norm = size * square_root(whole.update), less = 1;
    float& last = *static_cast<float*>(s_.own[t_].data);
    const double most = settings_.limit * static_cast<double>(last);
    if (most > 0 && norm > most) {
      less = most / norm;
      norm = most;
    }
    last = static_cast<float>(norm);
    return static_cast<double>(s_.lr[t_]) * size * less;
  }

  void update(Block at) {
    typed(s_.grads[t_], [&](const auto* grads) {
      if (wide_)
        update(at, grads, [&](auto io, std::int64_t, std::int64_t column) BOOST_EXT_INLINE_LAMBDA {
          return io.load(factors_.get() + column);
        });
      else
        update(at, grads,
               [&](auto, std::int64_t row, std::int64_t) BOOST_EXT_INLINE_LAMBDA { return all(factors_[row]); });
    });
  }
  // factor(io, row, column) of sixteen elements.
  template <class T, class Factor> BOOST_EXT_INLINE void update(Block at, const T* grads, Factor factor) {
    const WideWeights weights(s_.weights[t_], s_.narrow[t_]);
    const float keep = s_.keep[t_], scale = s_.scale[t_];
    float scratch[kChunk];
    for (std::int64_t begin = at.begin, n; begin < at.begin + at.count; begin += n) {
      const std::int64_t row = begin / columns_, column = begin % columns_;
      n = smaller(smaller(kChunk, at.begin + at.count - begin), columns_ - column);
      const F off = all(mean(row));
      const T* const g = grads + begin;
      weights.catch_up(begin, n);
      float* const w = weights.floats(begin, n, scratch);
      sixteens(n, [&](auto io, std::int64_t i) BOOST_EXT_INLINE_LAMBDA {
        const F u = scale * io.load(g + i) - off;
        io.store(w + i, keep * io.load(w + i) - factor(io, row, column + i) * u);
      });
      weights.store(w, begin, n);
    }
  }

  const ApolloSettings& settings_;
  const ProjectedStep& s_;
  std::int64_t t_;
  int threads_;
  std::int64_t rows_, columns_;
  bool wide_;
  std::int64_t channels_, depth_, rank_, block_;
  Scratch<float> signs_;
  Scratch<std::int64_t> offsets_, order_, ends_;
  Scratch<float> factors_, means_;
  ProjectedAdam adam_;
};

}  // namespace

void apollo_step(const Context& context, const ApolloSettings& settings, const ProjectedStep& step) {
  each_tensor(context.threads, step.weights, kAlone, 8,
              [&](std::int64_t t, int threads) { Matrix(settings, step, t, threads).run(); });
}

}  // namespace boost_ext::cpu::BOOST_EXT_ISA
