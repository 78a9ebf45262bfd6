#include "ops/apollo_step.h"

#include "cpu/products.h"
#include "cpu/random_words.h"
#include "cpu/wide_weights.h"
#include "ops/optimizer_rules.h"

namespace boost_ext::cpu::BOOST_EXT_ISA {
namespace {

constexpr std::int64_t kBlock = 4096;
// Up to so many elements a matrix is one thread's.
constexpr std::int64_t kAlone = 65536;
// That are projected at a time, a unit of work: with a rank of few rows sums stay in the first cache, without panels.
constexpr std::int64_t kFew = 4, kFewColumns = 512, kColumns = 256, kRows = 128;
static_assert(kColumns % kTileColumns<float> == 0 && kFew * kRows <= kFewColumns);
constexpr std::int64_t kNormals = 2 * kLanes;  // that are made at a time
constexpr double kTiny = 1e-30;
constexpr auto kTurn = static_cast<float>(6.283185307179586 * 0x1p-24);

double larger(double a, double b) { return a > b ? a : b; }

// Of 0 < x < 1, to 1e-7; coefficients of the Cephes library (Moshier).
BOOST_EXT_INLINE Vf logarithm_of(Vf x) {
  const Vi bits = reinterpret_cast<Vi>(x);
  const Vi exponent = (bits - 0x3f3504f3) >> 23;  // x / 2^exponent within sqrt(1/2) .. sqrt(2)
  const Vf e = __builtin_convertvector(exponent, Vf);
  const Vf f = reinterpret_cast<Vf>(bits - exponent * 0x800000) - 1.0F;
  Vf y = f * 7.0376836292e-2F - 1.1514610310e-1F;
  y = y * f + 1.1676998740e-1F;
  y = y * f - 1.2420140846e-1F;
  y = y * f + 1.4249322787e-1F;
  y = y * f - 1.6668057665e-1F;
  y = y * f + 2.0000714765e-1F;
  y = y * f - 2.4999993993e-1F;
  y = y * f + 3.3333331174e-1F;
  y = y * f * (f * f) - e * 2.12194440e-4F - 0.5F * (f * f);
  return f + y + e * 0.693359375F;
}

// Sixteen pairs of normal numbers from a pair of words each, times `scale`.
BOOST_EXT_INLINE void normal_pairs(const Vu* words, float scale, float* to) {
  BOOST_EXT_EACH(p) {
    const Vf uniform = __builtin_convertvector(reinterpret_cast<Vi>(words[p] >> 9), Vf);
    const Vf radius = scale * square_root(-2.0F * logarithm_of((uniform + 0.5F) * 0x1p-23F));
    // The angle to the nearest multiple of pi / 2, and which one that is.
    const Vi turn = reinterpret_cast<Vi>(words[kParts + p] >> 8);
    const Vi quarter = (turn + 0x200000) >> 22;
    const Vf x = __builtin_convertvector(turn - quarter * 0x400000, Vf) * kTurn, z = x * x;
    const Vf s = ((-1.9515295891e-4F * z + 8.3321608736e-3F) * z - 1.6666654611e-1F) * z * x + x;
    const Vf c =
        ((2.443315711809948e-5F * z - 1.388731625493765e-3F) * z + 4.166664568298827e-2F) * z * z - 0.5F * z + 1.0F;
    const Vi odd = quarter & 1;
    const Vu of_cosine = reinterpret_cast<Vu>((quarter + 1) & 2) << 30;
    const Vu of_sine = reinterpret_cast<Vu>(quarter & 2) << 30;
    const Vf cosine = reinterpret_cast<Vf>(reinterpret_cast<Vu>(odd != 0 ? s : c) ^ of_cosine);
    const Vf sine = reinterpret_cast<Vf>(reinterpret_cast<Vu>(odd != 0 ? c : s) ^ of_sine);
    put(to + p * kWidth, radius * cosine);
    put(to + kLanes + p * kWidth, radius * sine);
  }
}

// The basis of a matrix, with room for whole groups.
void draw(const DropoutKey key, std::int64_t count, float scale, int threads, float* to) {
  on_threads(threads, 4 * count, (count + kNormals - 1) / kNormals, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t group = begin; group < end; ++group) {
      Vu word[2 * kParts];
      BOOST_EXT_EACH(p) words(key, static_cast<std::uint64_t>(group * 8 + p * kWide), word + 2 * p);
      normal_pairs(word, scale, to + group * kNormals);
    }
  });
}

// What is known of some channels: a channel is a column, or a row of a matrix of more rows than columns.
struct Sums {
  double update = 0, adam = 0, projected = 0, gradient = 0;  // squares
};

class Matrix {
 public:
  Matrix(const ApolloStep& step, std::int64_t t, int threads)
      : s_(step),
        t_(t),
        threads_(threads),
        rows_(step.weights[t].rows),
        columns_(step.weights[t].size / rows_),
        wide_(rows_ <= columns_),
        channels_(wide_ ? columns_ : rows_),
        depth_(wide_ ? rows_ : columns_),
        rank_(step.first[t].size / channels_),
        few_(rank_ <= kFew),
        slabs_((depth_ + kSlab - 1) / kSlab),
        basis_(up_to(kNormals, rank_ * depth_)),
        left_(wide_  ? few_ ? 0 : slabs_ * up_to(kTileRows, rank_) * kSlab
              : few_ ? rank_ * depth_
                     : 0),
        factors_(channels_),
        means_(step.centralize[t] ? rows_ : 0),
        average1_(step.settings->step.hyper[0]),
        average2_(step.settings->step.hyper[1]),
        correct1_(correction(0)),
        correct2_(correction(1)),
        eps_(static_cast<float>(step.settings->step.hyper[2])) {}

  void run() {
    draw(s_.keys[t_], rank_ * depth_, static_cast<float>(1 / square_root(static_cast<double>(rank_))), threads_,
         basis_.get());
    lay_out();
    if (s_.centralize[t_]) find_means();
    const std::int64_t of = wide_ ? few_ ? kFewColumns : kColumns : kRows, units = (channels_ + of - 1) / of;
    Scratch<Sums> sums(units);
    on_threads(threads_, channels_ * depth_ * (4 + rank_ / 8), units, [&](std::int64_t begin, std::int64_t end) {
      Unit unit(*this);
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
    Blocks(Tensors(&whole, 1), kBlock).run(threads_, [&](Block at) { update(at); }, 4);
  }

 private:
  // What a thread works in.
  struct Unit {
    std::int64_t width;  // of a row of what is projected
    ProductBuffers buffers;
    Scratch<float> projected, slab;
    double gradient[kFewColumns], adam[kFewColumns], of_projected[kFewColumns];
    explicit Unit(const Matrix& x)
        : width(x.wide_ ? x.few_ ? kFewColumns : kColumns : padded<float>(x.rank_)),
          buffers(x.wide_ || x.few_ ? 0 : kRows),
          projected(width * up_to(kTileRows, x.wide_ ? x.rank_ : kRows)),
          slab(x.few_    ? kChunk
               : x.wide_ ? kSlab * kColumns
                         : 0) {}
  };

  // The basis as the loops take it: for products its rows by slabs, and with as many as tiles have; for a few dot
  // products transposed.
  void lay_out() {
    if (wide_ && !few_) {
      float* to = left_.get();
      for (std::int64_t k = 0; k < depth_; k += kSlab) {
        const auto bytes = static_cast<std::size_t>(smaller(kSlab, depth_ - k)) * sizeof(float);
        for (std::int64_t i = 0; i < up_to(kTileRows, rank_); ++i, to += kSlab) {
          std::memcpy(to, basis_.get() + (i < rank_ ? i : rank_ - 1) * depth_ + k, bytes);
        }
      }
    }
    if (wide_ || !few_) return;
    for (std::int64_t q = 0; q < rank_; ++q) {
      for (std::int64_t k = 0; k < depth_; ++k) left_[q * depth_ + k] = basis_[k * rank_ + q];
    }
  }

  float correction(int moment) const {
    const double b = s_.settings->step.hyper[static_cast<std::size_t>(moment)];
    return static_cast<float>(1 / (1 - power(b, s_.settings->step.step)));
  }

  void find_means() {
    on_threads(threads_, rows_ * columns_, rows_, [&](std::int64_t begin, std::int64_t end) {
      typed(s_.grads[t_], [&](const auto* g) {
        for (std::int64_t i = begin; i < end; ++i) {
          D sums[kAccumulators] = {};
          sweep(columns_, [&](auto io, std::int64_t j, auto u) BOOST_EXT_INLINE_LAMBDA {
            D& mine = sums[decltype(u)::value];
            mine = mine + widen(s_.scale[t_] * io.load(g + i * columns_ + j));
          });
          const double all = sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
          means_[i] = static_cast<float>(all / static_cast<double>(columns_));
        }
      });
    });
  }
  float mean(std::int64_t row) { return s_.centralize[t_] ? means_[row] : 0; }

  // R, m, v and the sums of the channels from `first` on; factors_ gets s_j.
  template <class T> Sums project(const T* g, std::int64_t first, std::int64_t count, Unit& unit) {
    for (std::int64_t j = 0; j < kFewColumns; ++j) unit.gradient[j] = unit.adam[j] = unit.of_projected[j] = 0;
    if (wide_) {
      if (few_)
        sum_columns(g, first, count, unit);
      else
        multiply_columns(g, first, count, unit);
      step_columns(first, count, unit);
    } else if (few_) {
      sum_rows(g, first, count, unit);
    } else {
      multiply_rows(g, first, count, unit);
    }
    Sums sums;
    for (std::int64_t j = 0; j < count; ++j) {
      const float factor =
          static_cast<float>(square_root(unit.adam[j]) / larger(kTiny, square_root(unit.of_projected[j])));
      factors_[first + j] = factor;
      sums.update += static_cast<double>(factor) * static_cast<double>(factor) * unit.gradient[j];
      sums.adam += unit.adam[j];
      sums.projected += unit.of_projected[j];
      sums.gradient += unit.gradient[j];
    }
    return sums;
  }

  // Of `kCount` rows and some columns the ready gradient, to each(k, io, column, u), and its squares to the sums. These
  // are float32 over four rows, whose squares v holds in float32 too, and float64 over all.
  template <int kCount, class T, class Each>
  BOOST_EXT_INLINE void ready_rows(const T* g, std::int64_t row, std::int64_t first, std::int64_t count, Unit& unit,
                                   Each each) {
    const float scale = s_.scale[t_];
    F off[kCount];
    for (int k = 0; k < kCount; ++k) off[k] = all(mean(row + k));
    const T* const from = g + row * columns_ + first;
    double* const squares = unit.gradient;
    sixteens(count, [&](auto io, std::int64_t c) BOOST_EXT_INLINE_LAMBDA {
      F u[kCount], sum_of = all(0);
#pragma GCC unroll 4
      for (int k = 0; k < kCount; ++k) {
        u[k] = scale * io.load(from + k * columns_ + c) - off[k];
        sum_of = sum_of + u[k] * u[k];
      }
      each(io, c, u);
      store(squares + c, load(squares + c) + widen(io.only(sum_of)));
    });
  }
  // body(row, At<4>) for every four rows up to `end`, and body(row, At<1>) for those that are left.
  template <class Body> BOOST_EXT_INLINE void each_four(std::int64_t begin, std::int64_t end, Body body) {
    std::int64_t row = begin;
    for (; row + 4 <= end; row += 4) body(row, At<4>{});
    for (; row < end; ++row) body(row, At<1>{});
  }

  template <class T> void sum_columns(const T* g, std::int64_t first, std::int64_t count, Unit& unit) {
    float* const sums = unit.projected.get();
    std::memset(sums, 0, static_cast<std::size_t>(rank_ * unit.width) * sizeof(float));
    each_four(0, rows_, [&](std::int64_t row, auto of) {
      constexpr int kCount = decltype(of)::value;
      float p[kFew][kCount];
      for (std::int64_t q = 0; q < rank_; ++q) {
        for (int k = 0; k < kCount; ++k) p[q][k] = basis_[q * depth_ + row + k];
      }
      ready_rows<kCount>(g, row, first, count, unit, [&](auto io, std::int64_t c, const F* u) BOOST_EXT_INLINE_LAMBDA {
        for (std::int64_t q = 0; q < rank_; ++q) {
          float* const to = sums + q * kFewColumns + c;
          F r = p[q][0] * u[0];
#pragma GCC unroll 4
          for (int k = 1; k < kCount; ++k) r = r + p[q][k] * u[k];
          io.store(to, io.load(to) + r);
        }
      });
    });
  }

  template <class T> void multiply_columns(const T* g, std::int64_t first, std::int64_t count, Unit& unit) {
    constexpr std::int64_t kWide = kTileColumns<float>;
    const std::int64_t tall = up_to(kTileRows, rank_), width = padded<float>(count);
    float* const panels = unit.slab.get();
    float* const out = unit.projected.get();
    if (width > count) std::memset(panels, 0, kSlab * kColumns * sizeof(float));  // beyond the columns
    for (std::int64_t k = 0; k < depth_; k += kSlab) {
      const std::int64_t some = smaller(kSlab, depth_ - k);
      each_four(k, k + some, [&](std::int64_t row, auto of) {
        constexpr int kCount = decltype(of)::value;
        float* const to = panels + (row - k) * kWide;
        ready_rows<kCount>(g, row, first, count, unit,
                           [&](auto io, std::int64_t c, const F* u) BOOST_EXT_INLINE_LAMBDA {
                             float* const at = to + c / kWide * (kSlab * kWide) + c % kWide;
                             for (int i = 0; i < kCount; ++i) io.store(at + i * kWide, u[i]);
                           });
      });
      const float* const left = left_.get() + k * tall;
      for (std::int64_t j = 0; j < width; j += kWide) {
        for (std::int64_t i = 0; i < tall; i += kTileRows) {
          Tile<float> tile;
          multiply_tile<kSlab, 1>(left + i * kSlab, panels + j * kSlab, some, tile);
          float* const to = out + i * unit.width + j;
          BOOST_EXT_EACH_ROW(m) BOOST_EXT_EACH_VECTOR(v) {
            float* const at = to + m * unit.width + v * kLanesOf<float>;
            put(at, k == 0 ? tile[m][v] : vector_at(at) + tile[m][v]);
          }
        }
      }
    }
  }

  void step_columns(std::int64_t first, std::int64_t count, Unit& unit) {
    for (std::int64_t i = 0; i < rank_; ++i) {
      sixteens(count, [&](auto io, std::int64_t c) BOOST_EXT_INLINE_LAMBDA {
        const F r = io.load(unit.projected.get() + i * unit.width + c);
        const D a = widen(adam(io, i * columns_ + first + c, r)), d = widen(r);
        store(unit.adam + c, add_product(load(unit.adam + c), a, a));
        store(unit.of_projected + c, add_product(load(unit.of_projected + c), d, d));
      });
    }
  }

  template <class T> void sum_rows(const T* g, std::int64_t first, std::int64_t count, Unit& unit) {
    const float scale = s_.scale[t_];
    float* const ready = unit.slab.get();
    float* const sums = unit.projected.get();  // without gaps, as the moments lie
    for (std::int64_t i = 0; i < count; ++i) {
      const F off = all(mean(first + i));
      double dots[kFew] = {};
      for (std::int64_t k = 0; k < columns_; k += kChunk) {
        const std::int64_t some = smaller(kChunk, columns_ - k);
        const T* const from = g + (first + i) * columns_ + k;
        F squares[kAccumulators] = {};
        sweep(some, [&](auto io, std::int64_t c, auto u) BOOST_EXT_INLINE_LAMBDA {
          const F x = io.only(scale * io.load(from + c) - off);
          io.store(ready + c, x);
          F& mine = squares[decltype(u)::value];
          mine = mine + x * x;
        });
        unit.gradient[i] += sum((squares[0] + squares[1]) + (squares[2] + squares[3]));
        for (std::int64_t q = 0; q < rank_; ++q) {
          F products[kAccumulators] = {};
          const float* const p = left_.get() + q * depth_ + k;
          sweep(some, [&](auto io, std::int64_t c, auto u) BOOST_EXT_INLINE_LAMBDA {
            F& mine = products[decltype(u)::value];
            mine = mine + io.load(p + c) * io.load(ready + c);
          });
          dots[q] += sum((products[0] + products[1]) + (products[2] + products[3]));
        }
      }
      for (std::int64_t q = 0; q < rank_; ++q) sums[i * rank_ + q] = static_cast<float>(dots[q]);
    }
    float steps[kFewColumns];
    sixteens(count * rank_, [&](auto io, std::int64_t c) BOOST_EXT_INLINE_LAMBDA {
      io.store(steps + c, adam(io, first * rank_ + c, io.load(sums + c)));
    });
    for (std::int64_t i = 0; i < count * rank_; ++i) {
      const auto a = static_cast<double>(steps[i]), r = static_cast<double>(sums[i]);
      unit.adam[i / rank_] += a * a;
      unit.of_projected[i / rank_] += r * r;
    }
  }

  template <class T> void multiply_rows(const T* g, std::int64_t first, std::int64_t count, Unit& unit) {
    const float scale = s_.scale[t_];
    const auto fill = [&](std::int64_t group, std::int64_t k, std::int64_t some, float* left) {
      for (std::int64_t i = 0; i < up_to(kTileRows, count); ++i) {
        const std::int64_t row = first + (i < count ? i : count - 1);
        const T* const from = g + row * columns_ + k;
        const F off = all(mean(row));
        F squares[kAccumulators] = {};
        sweep(some, [&](auto io, std::int64_t c, auto u) BOOST_EXT_INLINE_LAMBDA {
          const F ready = io.only(scale * io.load(from + c) - off);
          io.store(left + i * kSlab + c, ready);
          F& mine = squares[decltype(u)::value];
          mine = mine + ready * ready;
        });
        if (group == 0 && i < count) unit.gradient[i] += sum((squares[0] + squares[1]) + (squares[2] + squares[3]));
      }
    };
    const auto pack = [&](std::int64_t k, std::int64_t some, std::int64_t j, float* panel) {
      pack_panel(basis_.get() + k * rank_ + j, rank_, some, rank_ - j, 1, panel);
    };
    multiply_filled(fill, count, depth_, rank_, pack, unit.buffers, unit.projected.get(), unit.width);
    for (std::int64_t i = 0; i < count; ++i) {
      D of_adam = {}, of_projected = {};
      sixteens(rank_, [&](auto io, std::int64_t c) BOOST_EXT_INLINE_LAMBDA {
        const F r = io.load(unit.projected.get() + i * unit.width + c);
        const D a = widen(io.only(adam(io, (first + i) * rank_ + c, r))), d = widen(r);
        of_adam = add_product(of_adam, a, a);
        of_projected = add_product(of_projected, d, d);
      });
      unit.adam[i] = sum(of_adam);
      unit.of_projected[i] = sum(of_projected);
    }
  }

  // Steps the moments at `i`, and returns A.
  template <class Io> BOOST_EXT_INLINE F adam(Io io, std::int64_t i, F r) {
    float* const m = static_cast<float*>(s_.first[t_].data) + i;
    float* const v = static_cast<float*>(s_.second[t_].data) + i;
    const F mean = average1_(io.load(m), r), square = average2_(io.load(v), r * r);
    io.store(m, mean);
    io.store(v, square);
    return correct1_ * mean / (sqrt(correct2_ * square) + all(eps_));
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
    if (s_.settings->tensor_wise) {
      const auto factor = static_cast<float>(square_root(whole.adam) / larger(kTiny, square_root(whole.projected)));
      for (std::int64_t j = 0; j < channels_; ++j) factors_[j] = factor;
      whole.update = static_cast<double>(factor) * static_cast<double>(factor) * whole.gradient;
    }
    const double size = square_root(s_.settings->factor);
    double norm = size * square_root(whole.update), less = 1;
    float& last = *static_cast<float*>(s_.norms[t_].data);
    const double most = s_.settings->limit * static_cast<double>(last);
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

  const ApolloStep& s_;
  std::int64_t t_;
  int threads_;
  std::int64_t rows_, columns_;
  bool wide_;
  std::int64_t channels_, depth_, rank_;
  bool few_;
  std::int64_t slabs_;
  Scratch<float> basis_, left_, factors_, means_;
  Decay average1_, average2_;
  float correct1_, correct2_, eps_;
};

}  // namespace

void apollo_step(const Context& context, const ApolloStep& step) {
  each_tensor(context.threads, step.weights, kAlone, 8,
              [&](std::int64_t t, int threads) { Matrix(step, t, threads).run(); });
}

}  // namespace boost_ext::cpu::BOOST_EXT_ISA
