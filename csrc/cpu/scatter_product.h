// Products of matrices whose elements lie anywhere: (i, k) at data[rows[i] + columns[k]]. So an axis of a matrix may be
// several axes of a tensor, as in a convolution, which is a product then without a matrix of patches (Matthews,
// "High-Performance Tensor Contraction without Transposition", SIAM J. Sci. Comput. 40(1), 2018). Where neighbours of
// a matrix lie side by side, vectors move them into the panels of products.h; sums are those of that file.
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
  bool adds = false;  // to what is there
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

// What one thread computes: a block of a product of up to `rows` by `columns`.
class ScatterBlock {
 public:
  ScatterBlock(const ScatterMatrix& a, const ScatterMatrix& b, const ScatterOut& out, std::int64_t rows,
               std::int64_t columns, bool narrow)
      : a_(a),
        b_(b),
        out_(out),
        narrow_(kNarrows && narrow),
        width_(padded<float>(columns)),
        left_(up_to(kTileRows, rows) * kSlab),
        panel_(kSlab * (narrow_ ? padded<float>(columns) : kWide)),
        lines_(b.in_columns ? kSlab * kWide : 0),
        sums_(inner() > kSlab ? up_to(kTileRows, rows) * width_ : 0) {}

  void run(std::int64_t item, std::int64_t row, std::int64_t rows, std::int64_t column, std::int64_t columns) {
    const float *const a = a_.data + item * a_.step, *const b = b_.data + item * b_.step;
    float* const out = out_.data + item * out_.step;
    for (std::int64_t k = 0; k < inner(); k += kSlab) {
      const std::int64_t some = smaller(kSlab, inner() - k);
      narrow_ ? fill_narrow(a, row, rows, k, some) : fill(a, row, rows, k, some);
      if (narrow_) pack_narrow(b, k, some, column, columns);
      for (std::int64_t j = 0; j < columns; j += kWide) {
        const std::int64_t here = smaller(kWide, columns - j);
        if (!narrow_) pack(b, k, some, column + j, here);
        const Runs places(out_.columns.from(column + j), here);
        for (std::int64_t i = 0; i < rows; i += kTileRows) {
          Tile<float> tile;
          multiply(i, j, some, tile);
          float* const sums = sums_.get() + i * width_ + j;
          if (k > 0) {
            BOOST_EXT_EACH_ROW(m) BOOST_EXT_EACH_VECTOR(v) {
              tile[m][v] = vector_at(sums + m * width_ + v * kLanesOf<float>) + tile[m][v];
            }
          }
          if (k + kSlab < inner()) {
            BOOST_EXT_EACH_ROW(m) BOOST_EXT_EACH_VECTOR(v) { put(sums + m * width_ + v * kLanesOf<float>, tile[m][v]); }
          } else {
            put_tile(tile, out, row + i, smaller(kTileRows, rows - i), places, column + j, here);
          }
        }
      }
    }
  }

 private:
  static constexpr std::int64_t kWide = kTileColumns<float>;
#if defined(__AVX512F__)
  static constexpr bool kNarrows = true;
#else
  static constexpr bool kNarrows = false;
#endif

  // Rows of the left factor, up to whole tiles.
  void fill(const float* a, std::int64_t row, std::int64_t rows, std::int64_t k, std::int64_t some) {
    float* const left = left_.get();
    if (a_.in_columns) {
      const float* from[kSlab];
      for (std::int64_t begin = 0; begin < rows; begin += kSlab) {
        const Runs runs(a_.rows.from(row + begin), smaller(kSlab, rows - begin));
        runs.each([&](std::int64_t at, std::int64_t first, std::int64_t n) {
          for (std::int64_t c = 0; c < some; ++c) from[c] = a + at + a_.columns[k + c];
          transpose_lines(from, some, n, left + (begin + first) * kSlab, kSlab);
        });
      }
    } else {
      const Runs runs(a_.columns.from(k), some);
      for (std::int64_t m = 0; m < rows; ++m) runs.take(a + a_.rows[row + m], left + m * kSlab);
    }
    for (std::int64_t m = rows; m < up_to(kTileRows, rows); ++m) {
      for (std::int64_t c = 0; c < some; ++c) left[m * kSlab + c] = 0;
    }
  }

  // Columns of the right factor. What is beyond `columns` is of another panel, or zero.
  void pack(const float* b, std::int64_t k, std::int64_t some, std::int64_t column, std::int64_t columns) {
    float* const panel = panel_.get();
    if (b_.in_columns) {
      const Runs runs(b_.rows.from(k), some);
      const float* from[kWide];
      for (std::int64_t c = 0; c < columns; ++c) {
        from[c] = runs.line(b + b_.columns[column + c], lines_.get() + c * kSlab);
      }
      transpose_lines(from, columns, some, panel, kWide);
      return;
    }
    const Runs runs(b_.columns.from(column), columns);
    if (runs.are_one() && columns == kWide) {
      for (std::int64_t r = 0; r < some; ++r) {
        const float* const from = b + b_.rows[k + r] + b_.columns[column];
        BOOST_EXT_EACH_VECTOR(v) {
          put(panel + r * kWide + v * kLanesOf<float>, vector_at(from + v * kLanesOf<float>));
        }
      }
      return;
    }
    for (std::int64_t r = 0; r < some; ++r) runs.take(b + b_.rows[k + r], panel + r * kWide);
  }

#if defined(__AVX512F__)
  void multiply(std::int64_t row, std::int64_t column, std::int64_t some, Tile<float>& tile) const {
    if (narrow_) {
      const std::int64_t words = words_of(some);
      return multiply_narrow_tile(left_.get() + row * kSlab, panel_.get() + column * words, words, tile);
    }
    multiply_tile<kSlab, 1>(left_.get() + row * kSlab, panel_.get(), some, tile);
  }

  // fill() and pack() of factors that are rounded to bfloat16: before they are transposed, which moves half then.
  void fill_narrow(const float* a, std::int64_t row, std::int64_t rows, std::int64_t k, std::int64_t some) {
    float* const left = left_.get();
    if (a_.in_columns) {
      alignas(64) float pairs[kSlab / 2][kSlab];
      const float* from[kSlab / 2];
      for (std::int64_t begin = 0; begin < rows; begin += kSlab) {
        const Runs runs(a_.rows.from(row + begin), smaller(kSlab, rows - begin));
        runs.each([&](std::int64_t at, std::int64_t first, std::int64_t n) {
          for (std::int64_t c = 0; c < some; c += 2) {
            const float* const next = c + 1 < some ? a + at + a_.columns[k + c + 1] : nullptr;
            narrow_pair(a + at + a_.columns[k + c], next, n, pairs[c / 2]);
            from[c / 2] = pairs[c / 2];
          }
          transpose_lines(from, words_of(some), n, left + (begin + first) * kSlab, kSlab);
        });
      }
    } else {
      const Runs runs(a_.columns.from(k), some);
      for (std::int64_t m = 0; m < rows; ++m) {
        float* const line = left + m * kSlab;
        narrow_line(runs.line(a + a_.rows[row + m], line), some, line);
      }
    }
    for (std::int64_t m = rows; m < up_to(kTileRows, rows); ++m) {
      for (std::int64_t c = 0; c < words_of(some); ++c) left[m * kSlab + c] = 0;
    }
  }
  // All panels at once, along the rows of memory.
  void pack_narrow(const float* b, std::int64_t k, std::int64_t some, std::int64_t column, std::int64_t columns) {
    const auto panel = [&](std::int64_t j) { return panel_.get() + j * words_of(some); };
    if (b_.in_columns) {
      const Runs runs(b_.rows.from(k), some);
      for (std::int64_t j = 0; j < columns; j += kWide) {
        const std::int64_t here = smaller(kWide, columns - j);
        const float* from[kWide];
        for (std::int64_t c = 0; c < here; ++c) {
          float* const line = lines_.get() + c * kSlab;
          narrow_line(runs.line(b + b_.columns[column + j + c], line), some, line);
          from[c] = line;
        }
        transpose_lines(from, here, words_of(some), panel(j), kWide);
      }
      return;
    }
    for (std::int64_t first = 0; first < columns; first += kSlab) {
      const std::int64_t count = smaller(kSlab, columns - first);
      const Runs runs(b_.columns.from(column + first), count);
      alignas(64) float lines[2][kSlab];
      for (std::int64_t r = 0; r < some; r += 2) {
        const float* from[2] = {};
        for (std::int64_t i = 0; i < smaller(2, some - r); ++i) {
          from[i] = runs.line(b + b_.rows[k + r + i], lines[i]);
        }
        for (std::int64_t j = 0; j < count; j += kWide) {
          narrow_pair(from[0] + j, from[1] != nullptr ? from[1] + j : nullptr, smaller(kWide, count - j),
                      panel(first + j) + r / 2 * kWide);
        }
      }
    }
  }
#else
  void multiply(std::int64_t row, std::int64_t, std::int64_t some, Tile<float>& tile) const {
    multiply_tile<kSlab, 1>(left_.get() + row * kSlab, panel_.get(), some, tile);
  }
  void fill_narrow(const float*, std::int64_t, std::int64_t, std::int64_t, std::int64_t) {}
  void pack_narrow(const float*, std::int64_t, std::int64_t, std::int64_t, std::int64_t) {}
#endif

  void put_tile(Tile<float>& tile, float* out, std::int64_t row, std::int64_t rows, const Runs& places,
                std::int64_t column, std::int64_t columns) {
    if (rows == kTileRows && columns == kWide && places.are_one()) {
      BOOST_EXT_EACH_ROW(m) {
        float* const to = out + out_.rows[row + m] + out_.columns[column];
        BOOST_EXT_EACH_VECTOR(v) {
          float* const at = to + v * kLanesOf<float>;
          put(at, out_.adds ? vector_at(at) + tile[m][v] : tile[m][v]);
        }
      }
      return;
    }
    alignas(64) float found[kTileRows][kWide];
    BOOST_EXT_EACH_ROW(m) BOOST_EXT_EACH_VECTOR(v) put(found[m] + v * kLanesOf<float>, tile[m][v]);
    for (std::int64_t m = 0; m < rows; ++m) {
      float* const to = out + out_.rows[row + m];
      if (out_.adds) {
        for (std::int64_t c = 0; c < columns; ++c) found[m][c] = to[out_.columns[column + c]] + found[m][c];
      }
      places.put(found[m], to);
    }
  }

  std::int64_t inner() const { return a_.columns.size(); }

  const ScatterMatrix a_, b_;
  const ScatterOut out_;
  const bool narrow_;
  const std::int64_t width_;
  Scratch<float> left_;
  Zeros<float> panel_;
  Scratch<float> lines_, sums_;
};

// out = a b for `count` matrices; if `narrow`, of factors rounded to bfloat16, where the CPU multiplies these.
inline void multiply_scattered(int threads, std::int64_t count, const ScatterMatrix& a, const ScatterMatrix& b,
                               const ScatterOut& out, bool narrow = false) {
  constexpr std::int64_t kMostRows = 256, kMostColumns = 512, kFewest = 64, kShares = 4;
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
  // Blocks of a product stay in the second cache; smaller ones where there are too few for all threads.
  const std::int64_t wanted = threads > 1 ? kShares * threads : 1;
  std::int64_t high = smaller(kMostRows, rows), wide = smaller(kMostColumns, columns);
  const auto blocks = [&] { return count * quotient_up(rows, high) * quotient_up(columns, wide); };
  while (blocks() < wanted && (high > kFewest || wide > kFewest)) {
    if (wide >= high)
      wide = up_to(kTileColumns<float>, quotient_up(wide, 2));
    else
      high = up_to(kTileRows, quotient_up(high, 2));
  }
  const std::int64_t down = quotient_up(rows, high), across = quotient_up(columns, wide);
  on_threads(threads, count * rows * columns * inner / 8, blocks(), [&](std::int64_t begin, std::int64_t end) {
    ScatterBlock block(a, b, out, high, wide, narrow);
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t row = i / across % down * high, column = i % across * wide;
      block.run(i / (down * across), row, smaller(high, rows - row), column, smaller(wide, columns - column));
    }
  });
}

}  // namespace boost_ext::cpu::BOOST_EXT_ISA
