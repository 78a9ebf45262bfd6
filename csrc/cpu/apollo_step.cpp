#include "ops/apollo_step.h"

#include "cpu/chunks.h"
#include "cpu/products.h"
#include "cpu/random_words.h"
#include "ops/optimizer_rules.h"

namespace boost_ext::cpu::BOOST_EXT_ISA {
namespace {

constexpr std::int64_t kBlock = 4096;
// Up to so many elements a matrix is one thread's.
constexpr std::int64_t kAlone = 65536;
constexpr std::int64_t kColumns = 256, kRows = 128;  // that are projected at a time: a unit of work
static_assert(kColumns <= kGroup);
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
        basis_(up_to(kNormals, rank_ * depth_)),
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
    if (s_.centralize[t_]) find_means();
    const std::int64_t of = wide_ ? kColumns : kRows, units = (channels_ + of - 1) / of;
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
    double gradient[kColumns], adam[kColumns], of_projected[kColumns];
    explicit Unit(const Matrix& x)
        : width(padded<float>(x.wide_ ? kColumns : x.rank_)),
          buffers(x.wide_ ? x.rank_ : kRows),
          projected(width * up_to(kTileRows, x.wide_ ? x.rank_ : kRows)),
          slab(x.wide_ ? kSlab * kColumns : 0) {}
  };
  static_assert(kRows <= kColumns && kColumns % kTileColumns<float> == 0);

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
    for (std::int64_t j = 0; j < kColumns; ++j) unit.gradient[j] = unit.adam[j] = unit.of_projected[j] = 0;
    if (wide_)
      project_columns(g, first, count, unit);
    else
      project_rows(g, first, count, unit);
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

  template <class T> void project_columns(const T* g, std::int64_t first, std::int64_t count, Unit& unit) {
    float* const slab = unit.slab.get();
    const float scale = s_.scale[t_];
    const auto pack = [&](std::int64_t k, std::int64_t some, std::int64_t j, float* panel) {
      if (j == 0) {
        for (std::int64_t i = 0; i < some; ++i) {
          const T* const from = g + (k + i) * columns_ + first;
          const F off = all(mean(k + i));
          sixteens(count, [&](auto io, std::int64_t c) BOOST_EXT_INLINE_LAMBDA {
            const F u = scale * io.load(from + c) - off;
            io.store(slab + i * kColumns + c, u);
            const D wide = widen(io.only(u));
            store(unit.gradient + c, add_product(load(unit.gradient + c), wide, wide));
          });
        }
      }
      pack_panel(slab + j, kColumns, some, count - j, 1, panel);
    };
    multiply(basis_.get(), depth_, rank_, depth_, count, pack, unit.buffers, unit.projected.get(), unit.width);
    for (std::int64_t i = 0; i < rank_; ++i) {
      sixteens(count, [&](auto io, std::int64_t c) BOOST_EXT_INLINE_LAMBDA {
        const F r = io.load(unit.projected.get() + i * unit.width + c);
        const D a = widen(adam(io, i * columns_ + first + c, r)), d = widen(r);
        store(unit.adam + c, add_product(load(unit.adam + c), a, a));
        store(unit.of_projected + c, add_product(load(unit.of_projected + c), d, d));
      });
    }
  }

  template <class T> void project_rows(const T* g, std::int64_t first, std::int64_t count, Unit& unit) {
    const float scale = s_.scale[t_];
    const auto fill = [&](std::int64_t group, std::int64_t k, std::int64_t some, float* left) {
      for (std::int64_t i = 0; i < up_to(kTileRows, count); ++i) {
        const std::int64_t row = first + (i < count ? i : count - 1);
        const T* const from = g + row * columns_ + k;
        const F off = all(mean(row));
        D squares[kAccumulators] = {};
        sweep(some, [&](auto io, std::int64_t c, auto u) BOOST_EXT_INLINE_LAMBDA {
          const F ready = scale * io.load(from + c) - off;
          io.store(left + i * kSlab + c, ready);
          const D wide = widen(io.only(ready));
          D& mine = squares[decltype(u)::value];
          mine = add_product(mine, wide, wide);
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
    const View &weights = s_.weights[t_], &narrow = s_.narrow[t_];
    const float keep = s_.keep[t_], scale = s_.scale[t_];
    typed(s_.grads[t_], [&](const auto* grads) {
      float scratch[kChunk];
      for (std::int64_t begin = at.begin, n; begin < at.begin + at.count; begin += n) {
        const std::int64_t row = begin / columns_, column = begin % columns_;
        n = smaller(smaller(kChunk, at.begin + at.count - begin), columns_ - column);
        const F off = all(mean(row)), of_row = all(wide_ ? 0 : factors_[row]);
        const float* const by_column = factors_.get() + column;
        const auto* const g = grads + begin;
        float* const w = as_floats(weights, begin, n, scratch);
        if (narrow.data) typed(narrow, [&](auto* p) { follow(w, p + begin, n); });
        sixteens(n, [&](auto io, std::int64_t i) BOOST_EXT_INLINE_LAMBDA {
          const F u = scale * io.load(g + i) - off;
          const F factor = wide_ ? io.load(by_column + i) : of_row;
          io.store(w + i, keep * io.load(w + i) - factor * u);
        });
        if (is_half(weights)) typed(weights, [&](auto* p) { convert(w, p + begin, n); });
        if (narrow.data) typed(narrow, [&](auto* p) { convert(w, p + begin, n); });
      }
    });
  }

  const ApolloStep& s_;
  std::int64_t t_;
  int threads_;
  std::int64_t rows_, columns_;
  bool wide_;
  std::int64_t channels_, depth_, rank_;
  Scratch<float> basis_, factors_, means_;
  Decay average1_, average2_;
  float correct1_, correct2_, eps_;
};

}  // namespace

void apollo_step(const Context& context, const ApolloStep& step) {
  const std::int64_t count = step.weights.count;
  Scratch<std::int64_t> alone(count);
  std::int64_t small = 0, elements = 0;
  for (std::int64_t t = 0; t < count; ++t) {
    if (step.weights[t].size > kAlone) continue;
    alone[small++] = t;
    elements += step.weights[t].size;
  }
  on_threads(context.threads, 8 * elements, small, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t k = begin; k < end; ++k) Matrix(step, alone[k], 1).run();
  });
  for (std::int64_t t = 0; t < count; ++t) {
    if (step.weights[t].size > kAlone) Matrix(step, t, context.threads).run();
  }
}

}  // namespace boost_ext::cpu::BOOST_EXT_ISA
