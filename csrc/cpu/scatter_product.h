// Products of matrices whose elements lie anywhere: (i, k) at data[rows[i] + columns[k]]. So an axis of a matrix may be
// several axes of a tensor, as in a convolution, which is a product then without a matrix of patches (Matthews,
// "High-Performance Tensor Contraction without Transposition", SIAM J. Sci. Comput. 40(1), 2018). Where neighbours of
// a matrix lie side by side, vectors move them into the panels of product_tiles.h; sums are those of that file.
#pragma once

#include "cpu/bfloat16_products.h"
#include "cpu/image_rows.h"

namespace boost_ext::cpu::BOOST_EXT_ISA {

// Offsets along an axis of a matrix.
class Axis {
 public:
  explicit Axis(std::int64_t room) : offsets_(room) {}
  Axis(std::int64_t size, std::int64_t step) : Axis(size) {
    for (std::int64_t i = 0; i < size; ++i) add(i * step);
  }
  void add(std::int64_t offset) { offsets_[size_++] = offset; }
  const std::int64_t* from(std::int64_t i) const { return offsets_.get() + i; }
  std::int64_t operator[](std::int64_t i) const { return *from(i); }
  std::int64_t size() const { return size_; }

 private:
  Scratch<std::int64_t> offsets_;
  std::int64_t size_ = 0;
};

// One of several, whose data are `step` apart.
struct ScatterMatrix {
  const float* data;
  std::int64_t step;
  const Axis &rows, &columns;
  bool in_columns = false;  // neighbours lie in the same column, rather than in the same row
};
struct ScatterOut {
  float* data;
  std::int64_t step;
  const Axis &rows, &columns;
  bool adds = false;  // to what is there, which is the first of a sum's numbers then
};

// Up to kSlab offsets, in runs that go up by one.
class Runs {
 public:
  Runs(const std::int64_t* at, std::int64_t size) : at_(at), size_(size) {
    for (std::int64_t i = 0; i < size; i += lengths_[count_++]) {
      std::int64_t n = 1;
      while (i + n < size && at[i + n] == at[i] + n) ++n;
      lengths_[count_] = static_cast<std::int16_t>(n);
    }
  }
  bool are_one() const { return count_ <= 1; }

  // body(run, first, n): the run begins at data[run] in memory, and is the elements from `first` on.
  template <class Body> BOOST_EXT_INLINE void each(Body body) const {
    for (std::int64_t r = 0, i = 0; r < count_; i += lengths_[r++]) body(at_[i], i, lengths_[r]);
  }
  void take(const float* data, float* to) const {
    if (count_ == size_) {
      for (std::int64_t i = 0; i < size_; ++i) to[i] = data[at_[i]];
      return;
    }
    each([&](std::int64_t from, std::int64_t i, std::int64_t n) { copy_row(data + from, n, to + i); });
  }
  // All of them side by side: where they are, or else in `room`.
  const float* line(const float* data, float* room) const {
    if (are_one()) return data + at_[0];
    take(data, room);
    return room;
  }
  void put(const float* from, float* data) const {
    if (count_ == size_) {
      for (std::int64_t i = 0; i < size_; ++i) data[at_[i]] = from[i];
      return;
    }
    each([&](std::int64_t to, std::int64_t i, std::int64_t n) { copy_row(from + i, n, data + to); });
  }

 private:
  const std::int64_t* at_;
  std::int64_t size_, count_ = 0;
  std::int16_t lengths_[kSlab];
};

// to[t * stride + c] = from[c][t]. A line of memory is read at once.
inline void transpose_lines(const float* const* from, std::int64_t columns, std::int64_t count, float* to,
                            std::int64_t stride) {
  constexpr std::int64_t kLine = 16;
  for (std::int64_t t = 0; t < count; t += kLine) {
    turn([=](std::int64_t c) BOOST_EXT_INLINE_LAMBDA { return from[c] + t; }, columns, smaller(kLine, count - t),
         to + t * stride, stride);
  }
}

// How a product is cut into blocks, which stay in the second cache: some for each thread, where it is large enough.
// They are high, since each packs its columns for itself, and a thread keeps what it has packed of the left factor
// (Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication", ACM Trans. Math. Softw. 34(3), 2008).
struct ScatterCut {
  ScatterCut(int threads, std::int64_t rows, std::int64_t inner, std::int64_t columns) {
    constexpr std::int64_t kHigh = 512, kWide = 256, kFewest = up_to(kTileRows, 64), kRoom = 1 << 20;
    const std::int64_t wanted = threads > 1 ? kShares * threads : 1;
    high = up_to(kTileRows, quotient_up(rows, quotient_up(rows, kHigh)));
    wide = smaller(up_to(kTileColumns<float>, kHigh * kWide / up_to(kHigh / 4, high)), columns);
    const auto are_few = [&] { return quotient_up(rows, high) * quotient_up(columns, wide) < wanted; };
    while (are_few() && wide > kFewest) wide = up_to(kTileColumns<float>, quotient_up(wide, 2));
    while (are_few() && high > kFewest) high = up_to(kTileRows, quotient_up(high, 2));
    down = quotient_up(rows, high);
    across = quotient_up(columns, wide);
    depth = keeps_left() ? smaller(inner, kRoom / up_to(kTileRows, high) / kSlab * kSlab) : inner;
    at_once = down < wanted ? 1 : across;
  }
  // For the next block of the same rows. Threads share nothing packed: to get it from the cache of another core took
  // longer than to pack it again, where cores have third caches of their own.
  bool keeps_left() const { return across > 1; }

  static constexpr std::int64_t kShares = 4;  // of a thread
  std::int64_t high, wide, down, across;
  std::int64_t depth;    // so much of each sum at a time, in whole slabs, as a thread has room for
  std::int64_t at_once;  // blocks that a thread takes
};

// Products of matrices with the same axes, one at a time; of factors rounded to bfloat16 if kNarrow.
template <bool kNarrow> class ScatterProduct {
 public:
  ScatterProduct(int threads, const ScatterMatrix& a, const ScatterMatrix& b, const ScatterOut& out)
      : threads_(threads),
        a_(a),
        b_(b),
        out_(out),
        rows_(a.rows.size()),
        inner_(a.columns.size()),
        columns_(b.columns.size()),
        cut_(threads, rows_, inner_, columns_),
        high_(up_to(kTileRows, cut_.high)),
        wide_(padded<float>(cut_.wide)),
        left_(high_ * kRow * (cut_.keeps_left() ? quotient_up(cut_.depth, kSlab) : 1)),
        right_(kRow * wide_),
        sums_(cut_.depth > kSlab ? high_ * wide_ : kTile),
        count_(smaller(threads, cut_.down * cut_.across)),
        memory_(count_ * (left_ + right_ + sums_)),
        own_(count_) {
    for (std::int64_t i = 0; i < count_; ++i) {
      float* const left = memory_.get() + i * (left_ + right_ + sums_);
      own_[i] = {left, left + left_, left + left_ + right_};
    }
  }

  void run(std::int64_t item) {
    const Item of{a_.data + item * a_.step, b_.data + item * b_.step, out_.data + item * out_.step};
    for (std::int64_t begin = 0; begin < inner_; begin += cut_.depth) {
      const std::int64_t end = smaller(begin + cut_.depth, inner_);
      for (std::int64_t i = 0; i < count_; ++i) own_[i].row = -1;
      on_threads(
          threads_, rows_ * columns_ * (end - begin) / 8, cut_.down * cut_.across,
          [&](std::int64_t first, std::int64_t last) {
            Own& own = take_one();
            for (std::int64_t i = first; i < last; ++i) multiply(own, of, begin, end, i);
            __atomic_store_n(&own.is_taken, false, __ATOMIC_RELEASE);
          },
          cut_.at_once);
    }
  }

 private:
  static constexpr std::int64_t kWide = kTileColumns<float>, kTile = kTileRows * kWide;

  struct Item {
    const float *a, *b;
    float* out;
  };
  struct Place {  // of a tile
    float* out;
    std::int64_t row, rows, column;
    const Runs& runs;
  };
  // Memory of one thread.
  struct Own {
    float *left, *right, *sums;
    std::int64_t row = -1;  // from which on `left` holds rows
    bool is_taken = false;
  };

  // What a thread had before, unless that has changed hands.
  Own& take_one() {
    for (std::int64_t i = 0;; i = i + 1 < count_ ? i + 1 : 0) {
      if (!__atomic_exchange_n(&own_[i].is_taken, true, __ATOMIC_ACQUIRE)) return own_[i];
    }
  }

  static constexpr std::int64_t kRow = kRowWords<kNarrow>;  // from one row of the left factor to the next

  // One block, of what lies from `begin` to `end` of its sums.
  void multiply(Own& own, const Item& of, std::int64_t begin, std::int64_t end, std::int64_t index) {
    const std::int64_t row = index / cut_.across * cut_.high, rows = smaller(cut_.high, rows_ - row);
    const std::int64_t column = index % cut_.across * cut_.wide, columns = smaller(cut_.wide, columns_ - column);
    const bool is_left = own.row == row, is_begun = begin > 0 || out_.adds;
    if (cut_.keeps_left()) own.row = row;
    for (std::int64_t k = begin; k < end; k += kSlab) {
      const std::int64_t some = smaller(kSlab, end - k);
      float* const left = own.left + (cut_.keeps_left() ? (k - begin) / kSlab * high_ * kRow : 0);
      if (!is_left) fill(of.a, row, rows, k, some, left);
      pack(of.b, k, some, column, columns, own.right);
      for (std::int64_t j = 0; j < columns; j += kWide) {
        const std::int64_t here = smaller(kWide, columns - j);
        const Runs runs(out_.columns.from(column + j), here);
        for (std::int64_t i = 0; i < rows; i += kTileRows) {
          const Place place{of.out, row + i, smaller(kTileRows, rows - i), column + j, runs};
          // In the order in which they are used, or all in one place.
          float* const sums = own.sums + (sums_ > kTile ? j * high_ + i * kWide : 0);
          if (k == begin && is_begun) read(place, sums);
          Tile<float> tile;
          multiply_slab<kNarrow>(left + i * kRow, own.right + j * words<kNarrow>(some), some, tile);
          const bool is_last = k + kSlab >= end;
          if (k > begin || is_begun) {
            BOOST_EXT_EACH_OF(kTileRows, m) BOOST_EXT_EACH_OF(kTileVectors, v) {
              tile[m][v] = vector_at(sums + m * kWide + v * kLanesOf<float>) + tile[m][v];
            }
          }
          if (is_last && place.rows == kTileRows && here == kWide && runs.are_one()) {
            BOOST_EXT_EACH_OF(kTileRows, m) BOOST_EXT_EACH_OF(kTileVectors, v) {
              put(row_of(place, m) + out_.columns[place.column] + v * kLanesOf<float>, tile[m][v]);
            }
            continue;
          }
          add_tile(tile, true, sums, kWide);
          if (is_last) write(sums, place);
        }
      }
    }
  }

  // Rows of the left factor, up to whole tiles.
  void fill(const float* a, std::int64_t row, std::int64_t rows, std::int64_t k, std::int64_t some, float* to) {
    if (a_.in_columns) {
      const float* from[kSlab];
      alignas(64) float pairs[kSlab / 2][kSlab];
      for (std::int64_t begin = 0; begin < rows; begin += kSlab) {
        const Runs runs(a_.rows.from(row + begin), smaller(kSlab, rows - begin));
        runs.each([&](std::int64_t at, std::int64_t first, std::int64_t n) {
          const auto column = [&](std::int64_t c) { return c < some ? a + at + a_.columns[k + c] : nullptr; };
          for (std::int64_t c = 0; c < words<kNarrow>(some); ++c) {
            from[c] = kNarrow ? narrow_pair(column(2 * c), column(2 * c + 1), n, pairs[c]) : column(c);
          }
          transpose_lines(from, words<kNarrow>(some), n, to + (begin + first) * kRow, kRow);
        });
      }
    } else {
      const Runs runs(a_.columns.from(k), some);
      alignas(64) float line[kSlab];
      for (std::int64_t m = 0; m < rows; ++m) {
        const float* const from = a + a_.rows[row + m];
        if constexpr (kNarrow)
          narrow_line(runs.line(from, line), some, to + m * kRow);
        else
          runs.take(from, to + m * kRow);
      }
    }
    for (std::int64_t m = rows; m < up_to(kTileRows, rows); ++m) {
      for (std::int64_t c = 0; c < words<kNarrow>(some); ++c) to[m * kRow + c] = 0;
    }
  }

  // Columns of the right factor, up to whole panels.
  void pack(const float* b, std::int64_t k, std::int64_t some, std::int64_t column, std::int64_t columns, float* to) {
    const std::int64_t high = words<kNarrow>(some), rest = columns / kWide * kWide;
    for (std::int64_t i = 0; rest < columns && i < high * kWide; ++i) to[rest * high + i] = 0;
    if (b_.in_columns) {
      const Runs runs(b_.rows.from(k), some);
      alignas(64) float lines[kWide][kSlab];
      for (std::int64_t j = 0; j < columns; j += kWide) {
        const std::int64_t here = smaller(kWide, columns - j);
        const float* from[kWide];
        for (std::int64_t c = 0; c < here; ++c) {
          const float* const line = runs.line(b + b_.columns[column + j + c], lines[c]);
          from[c] = kNarrow ? narrow_line(line, some, lines[c]) : line;
        }
        transpose_lines(from, here, high, to + j * high, kWide);
      }
      return;
    }
    for (std::int64_t first = 0; first < columns; first += kSlab) {
      const std::int64_t count = smaller(kSlab, columns - first);
      const Runs runs(b_.columns.from(column + first), count);
      alignas(64) float lines[2][kSlab];
      const auto row = [&](std::int64_t r, float* line) {
        return r < some ? runs.line(b + b_.rows[k + r], line) : nullptr;
      };
      for (std::int64_t r = 0; r < high; ++r) {
        const float* const low = row(kNarrow ? 2 * r : r, lines[0]);
        const float* const next = kNarrow ? row(2 * r + 1, lines[1]) : nullptr;
        for (std::int64_t j = 0; j < count; j += kWide) {
          float* const at = to + (first + j) * high + r * kWide;
          const std::int64_t here = smaller(kWide, count - j);
          if constexpr (kNarrow)
            narrow_pair(low + j, next != nullptr ? next + j : nullptr, here, at);
          else
            copy_row(low + j, here, at);
        }
      }
    }
  }

  float* row_of(const Place& p, std::int64_t m) const { return p.out + out_.rows[p.row + m]; }
  // A tile, whose rows lie one after the other in `sums`.
  void read(const Place& p, float* sums) const {
    for (std::int64_t m = 0; m < p.rows; ++m) p.runs.take(row_of(p, m), sums + m * kWide);
  }
  void write(const float* sums, const Place& p) const {
    for (std::int64_t m = 0; m < p.rows; ++m) p.runs.put(sums + m * kWide, row_of(p, m));
  }

  const int threads_;
  const ScatterMatrix a_, b_;
  const ScatterOut out_;
  const std::int64_t rows_, inner_, columns_;
  const ScatterCut cut_;
  const std::int64_t high_, wide_;          // of a block, up to whole tiles
  const std::int64_t left_, right_, sums_;  // words
  const std::int64_t count_;                // of threads
  Scratch<float> memory_;
  Scratch<Own> own_;
};

// out = a b for `count` matrices; if `narrow`, of factors rounded to bfloat16, where the CPU multiplies these.
inline void multiply_scattered(int threads, std::int64_t count, const ScatterMatrix& a, const ScatterMatrix& b,
                               const ScatterOut& out, bool narrow = false) {
  const std::int64_t rows = a.rows.size(), inner = a.columns.size(), columns = b.columns.size();
  if (count * rows * columns == 0) return;
  if (inner == 0) {
    for (std::int64_t n = 0; n < count && !out.adds; ++n) {
      for (std::int64_t i = 0; i < rows; ++i) {
        for (std::int64_t j = 0; j < columns; ++j) out.data[n * out.step + out.rows[i] + out.columns[j]] = 0;
      }
    }
    return;
  }
  const auto some = [&](int with, std::int64_t begin, std::int64_t end) {
    in_precision(narrow, [&](auto is_narrow) {
      ScatterProduct<is_narrow> product(with, a, b, out);
      for (std::int64_t n = begin; n < end; ++n) product.run(n);
    });
  };
  // Each by one thread, where that leaves none idle; otherwise each by all.
  const std::int64_t work = rows * columns * inner / 8, useful = 1 + work / kElementsPerThread;
  if (count >= ScatterCut::kShares * threads || smaller(count, threads) > smaller(useful, threads)) {
    on_threads(threads, count * work, count, [&](std::int64_t begin, std::int64_t end) { some(1, begin, end); });
  } else {
    some(threads, 0, count);
  }
}

}  // namespace boost_ext::cpu::BOOST_EXT_ISA
