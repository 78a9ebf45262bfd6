// Convolutions of many channels with weights of 3 x 3 and stride 1, by Winograd's minimal filtering: sixteen products
// of matrices, one for each element of a transformed tile, where direct sums need thirty-six. A product's left factor
// has a row for each output, its right factor a column for each tile. Sums are those of product_tiles.h, so the bits
// depend neither on instruction set nor threads. The bound of the error is that of direct sums, but on the sums of the
// absolute values of all that a tile sees rather than an output.
#pragma once

#include "cpu/winograd_tiles.h"

namespace boost_ext::cpu::BOOST_EXT_ISA {

// A convolution of stride 1: its output (i, j) sees the inputs from (i - top, j - left) on.
struct Layer {
  std::int64_t images, channels, h, w, outputs, oh, ow, top, left;
};

constexpr int kElements = 16;              // of a transformed tile
constexpr std::int64_t kApart = 16;        // numbers between products, lest they share the cache's sets
constexpr std::int64_t kTilesAtOnce = 64;  // tiles whose product stays in the second cache
constexpr std::int64_t kOutputsAtOnce = up_to(kTileRows, 64);  // with so many outputs
constexpr std::int64_t kTransformed = 1 << 20;  // numbers of transformed inputs that stay in the last cache

// Weights (outputs, channels, 3, 3); if `turned`, those of the gradient of the inputs, from weights (channels, outputs,
// 3, 3), each turned by 180 degrees.
struct Weights {
  const float* w;
  std::int64_t outputs, channels;
  bool turned;
};

// Left factors of `some` outputs from `first` on, in slabs of kSlab columns.
template <bool kNarrow> class Factors {
 public:
  Factors(int threads, const Weights& of, std::int64_t first, std::int64_t some)
      : rows_(up_to(kTileRows, some)),
        stride_(words<kNarrow>(up_to(kSlab, of.channels)) * rows_ + kApart),
        numbers_(kElements * stride_) {
    constexpr std::int64_t kRows = 16;  // which share lines of memory if turned
    const std::int64_t step = of.turned ? of.outputs : 1;
    on_threads(threads, 4 * kElements * some * of.channels, quotient_up(rows_, kRows),
               [&](std::int64_t begin, std::int64_t end) {
                 const auto from = [&](std::int64_t k, std::int64_t o) {
                   const std::int64_t row = first + smaller(o, some - 1);
                   return of.w + (smaller(k, of.channels - 1) * step + row * (of.turned ? 1 : of.channels)) * 9;
                 };
                 const std::int64_t o_begin = begin * kRows, o_end = smaller(end * kRows, rows_);
                 for (std::int64_t k = 0; k < of.channels; k += kBatch) {
                   for (std::int64_t o = o_begin; o < o_end; ++o) {
                     const std::int64_t next = o + kAhead - o_end;
                     const float* const ahead = next < 0 ? from(k, o + kAhead) : from(k + kBatch, o_begin + next);
                     transform(from(k, o), ahead, step * 9, smaller(kBatch, of.channels - k), of.turned,
                               numbers_.get() + (k / kSlab * rows_ + o) * kRow + words<kNarrow>(k % kSlab));
                   }
                 }
               });
  }

  const float* at(int element, std::int64_t slab, std::int64_t row) {
    return numbers_.get() + element * stride_ + (slab * rows_ + row) * kRow;
  }

 private:
  // So many channels at a time that what is stored number by number is in the cache when it is loaded as vectors.
  static constexpr std::int64_t kBatch = 32;
  static constexpr std::int64_t kAhead = 4;  // batches
  static constexpr std::int64_t kRow = kRowWords<kNarrow>;

  void transform(const float* w, const float* ahead, std::int64_t step, std::int64_t channels, bool turned,
                 float* to) const {
    float lanes[9][kBatch] = {};
    alignas(64) float lines[kElements][kNarrow ? kBatch : 1];
    float* const at = kNarrow ? lines[0] : to;
    const std::int64_t between = kNarrow ? kBatch : stride_;
    for (std::int64_t l = 0; l < channels; ++l) {
      __builtin_prefetch(ahead + l * step);
      for (int t = 0; t < 9; ++t) lanes[t][l] = w[l * step + t];
    }
    for (std::int64_t l = 0; l < channels; l += kWidth) {
      Vf g[3][3], u[4][4];
      BOOST_EXT_EACH_OF(3, a) BOOST_EXT_EACH_OF(3, b) {
        g[a][b] = load_floats(lanes[turned ? 8 - 3 * a - b : 3 * a + b] + l);
      }
      transform_weights(g, u);
      BOOST_EXT_EACH_OF(4, a) BOOST_EXT_EACH_OF(4, b) put(at + (4 * a + b) * between + l, u[a][b]);
    }
    for (int e = 0; kNarrow && e < kElements; ++e) narrow_line(lines[e], channels, to + e * stride_);
  }

  std::int64_t rows_, stride_;
  Scratch<float> numbers_;
};

// Numbers of rows to come, into the second cache: large factors come from the last one, or from memory.
BOOST_EXT_INLINE void read_ahead(const float* rows, std::int64_t count) {
  for (std::int64_t i = 0; i < count; i += 16) __builtin_prefetch(rows + i, 0, 2);
}

// y of `outputs` planes from the products of a block of tiles: rows of kTilesAtOnce, `stride` between elements.
inline void put_outputs(const float* m, std::int64_t stride, std::int64_t outputs, const Tiles& tiles,
                        std::int64_t first, std::int64_t some, const Layer& of, float* y) {
  alignas(64) float lines[2][2 * kTilesAtOnce];
  for (std::int64_t o = 0; o < outputs; ++o, m += kTilesAtOnce, y += of.oh * of.ow) {
    for (std::int64_t t = 0; t < some; t += kWidth) {
      Vf from[4][4], out[2][2];
      BOOST_EXT_EACH_OF(4, a) BOOST_EXT_EACH_OF(4, b) from[a][b] = load_floats(m + (4 * a + b) * stride + t);
      transform_outputs(from, out);
      BOOST_EXT_EACH_OF(2, a) {
        put(lines[a] + 2 * t, first_pairs(out[a][0], out[a][1]));
        put(lines[a] + 2 * t + kWidth, last_pairs(out[a][0], out[a][1]));
      }
    }
    tiles.each_row(
        first, some,
        [&](std::int64_t image, std::int64_t row, std::int64_t column, std::int64_t here, std::int64_t done) {
          float* const to = y + image * of.outputs * of.oh * of.ow + 2 * row * of.ow + 2 * column;
          const std::int64_t n = smaller(2 * here, of.ow - 2 * column);
          copy_row(lines[0] + 2 * done, n, to);
          if (2 * row + 1 < of.oh) copy_row(lines[1] + 2 * done, n, to + of.ow);
        });
  }
}

// Of factors rounded to bfloat16, once they are transformed, if kNarrow.
template <bool kNarrow> class TiledConvolution {
 public:
  TiledConvolution(int threads, const float* x, const float* w, bool turned, const Layer& of, float* y)
      : of_(of),
        tiles_(of.images, of.oh, of.ow),
        weights_{w, of.outputs, of.channels, turned},
        x_(x),
        y_(y),
        high_(words<kNarrow>(of.channels)),
        parts_(quotient_up(of.outputs, kOutputsAtOnce)) {
    const std::int64_t groups = quotient_up(tiles_.count, kTilesAtOnce);
    const std::int64_t fit = kTransformed / (kElements * high_ * kTilesAtOnce);
    if (groups >= kShares * threads) {  // each stays in the cache of the core that computes it
      Factors<kNarrow> factors(threads, weights_, 0, of.outputs);
      on_threads(threads, work(tiles_.count), groups, [&](std::int64_t begin, std::int64_t end) {
        Scratch<float> inputs(kElements * stride(1));
        for (std::int64_t group = begin; group < end; ++group)
          compute(1, group * kTilesAtOnce, 1, factors, inputs.get());
      });
      return;
    }
    const std::int64_t most = smaller(groups, fit > 2 ? fit : 2);
    Scratch<float> inputs(kElements * stride(most));
    if (groups == most && parts_ >= kShares * threads) {  // factors stay there
      transform_all(threads, 0, groups, inputs.get());
      on_threads(threads, work(tiles_.count), parts_, [&](std::int64_t begin, std::int64_t end) {
        Scratch<float> products(kElements * kStride);
        for (std::int64_t part = begin; part < end; ++part) {
          const std::int64_t o = part * kOutputsAtOnce;
          Factors<kNarrow> factors(1, weights_, o, smaller(kOutputsAtOnce, of_.outputs - o));
          for (std::int64_t group = 0; group < groups; ++group) {
            multiply(inputs.get(), 0, groups, group, factors, 0, o, products.get());
          }
        }
      });
      return;
    }
    Factors<kNarrow> factors(threads, weights_, 0, of.outputs);
    for (std::int64_t group = 0; group < groups; group += most) {
      compute(threads, group * kTilesAtOnce, smaller(most, groups - group), factors, inputs.get());
    }
  }

 private:
  static constexpr std::int64_t kColumns = kTileColumns<float>, kShares = 4;
  static constexpr std::int64_t kRow = kRowWords<kNarrow>;

  std::int64_t stride(std::int64_t groups) const { return groups * kTilesAtOnce * high_ + kApart; }
  std::int64_t work(std::int64_t tiles) const { return kElements * of_.outputs * tiles * of_.channels / 8; }

  // The outputs of so many groups of tiles.
  void compute(int threads, std::int64_t first, std::int64_t groups, Factors<kNarrow>& factors, float* inputs) {
    transform_all(threads, first, groups, inputs);
    on_threads(threads, work(groups * kTilesAtOnce), parts_ * groups, [&](std::int64_t begin, std::int64_t end) {
      Scratch<float> products(kElements * kStride);
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t o = i / groups * kOutputsAtOnce;
        multiply(inputs, first, groups, i % groups, factors, o, o, products.get());
      }
    });
  }

  void transform_all(int threads, std::int64_t first, std::int64_t groups, float* inputs) const {
    const std::int64_t tiles = smaller(groups * kTilesAtOnce, tiles_.count - first);
    on_threads(threads, 2 * kElements * tiles * of_.channels, groups * high_,
               [&](std::int64_t begin, std::int64_t end) {
                 Windows<4> windows(tiles_, of_.h, of_.w, of_.top, of_.left, kTilesAtOnce);
                 for (std::int64_t i = begin; i < end; ++i) {
                   const std::int64_t at = i / high_ * kTilesAtOnce;
                   transform(windows, i % high_, first + at, smaller(kTilesAtOnce, tiles - at), stride(groups),
                             inputs + at * high_);
                 }
               });
  }

  // A row of each right factor, in panels: of one channel, or of two in words.
  void transform(Windows<4>& windows, std::int64_t row, std::int64_t first, std::int64_t tiles, std::int64_t between,
                 float* panels) const {
    constexpr std::int64_t kChannels = kNarrow ? 2 : 1;
    const std::int64_t channel = row * kChannels, channels = smaller(kChannels, of_.channels - channel);
    alignas(64) float lines[kChannels][kElements][kNarrow ? kTilesAtOnce : 1];
    const auto place = [=](std::int64_t t) { return panels + (t / kColumns * high_ + row) * kColumns + t % kColumns; };
    for (std::int64_t c = 0; c < channels; ++c) {
      windows.read(x_ + (channel + c) * of_.h * of_.w, of_.channels * of_.h * of_.w, first, tiles);
      for (std::int64_t t = 0; t < padded<float>(tiles); t += kWidth) {
        Vf d[4][4];
        windows.take(t, d);
        transform_inputs(d);
        float* const to = kNarrow ? lines[c][0] + t : place(t);
        const std::int64_t step = kNarrow ? kTilesAtOnce : between;
        BOOST_EXT_EACH_OF(4, a) BOOST_EXT_EACH_OF(4, b) put(to + (4 * a + b) * step, d[a][b]);
      }
    }
    for (int e = 0; kNarrow && e < kElements; ++e) {
      for (std::int64_t t = 0; t < tiles; t += kColumns) {
        narrow_pair(lines[0][e] + t, channels > 1 ? lines[1][e] + t : nullptr, kColumns, place(t) + e * between);
      }
    }
  }

  // The outputs from o on, up to kOutputsAtOnce, of a group of tiles; they have the factors from `row` on.
  void multiply(const float* inputs, std::int64_t first, std::int64_t groups, std::int64_t group,
                Factors<kNarrow>& factors, std::int64_t row, std::int64_t o, float* products) {
    const std::int64_t begins = first + group * kTilesAtOnce, tiles = smaller(kTilesAtOnce, tiles_.count - begins);
    const std::int64_t outputs = smaller(kOutputsAtOnce, of_.outputs - o);
    const float* const panels = inputs + group * kTilesAtOnce * high_;
    for (int e = 0; e < kElements; ++e) {
      for (std::int64_t k = 0; k < of_.channels; k += kSlab) {
        for (std::int64_t t = 0; t < tiles; t += kColumns) {
          const float* const panel = panels + e * stride(groups) + t * high_ + words<kNarrow>(k) * kColumns;
          for (std::int64_t r = 0; r < outputs; r += kTileRows) {
            const float* const left = factors.at(e, k / kSlab, row + r);
            if (t == 0) read_ahead(left + 2 * kTileRows * kRow, kTileRows * kRow);
            Tile<float> tile;
            multiply_slab<kNarrow>(left, panel, smaller(kSlab, of_.channels - k), tile);
            add_tile(tile, k == 0, products + e * kStride + r * kTilesAtOnce + t, kTilesAtOnce);
          }
        }
      }
    }
    put_outputs(products, kStride, outputs, tiles_, begins, tiles, of_, y_ + o * of_.oh * of_.ow);
  }

  static constexpr std::int64_t kStride = kOutputsAtOnce * kTilesAtOnce + kApart;
  const Layer of_;
  const Tiles tiles_;
  const Weights weights_;
  const float* x_;
  float* y_;
  std::int64_t high_, parts_;
};

// Rows of `stride` become columns of a panel: kColumns rows of `count` numbers.
template <std::int64_t kColumns>
inline void put_columns(const float* from, std::int64_t stride, std::int64_t count, float* panel) {
  for (std::int64_t c = 0; c < kColumns; c += 4) {
    for (std::int64_t t = 0; t < count; t += 4) {
      const float* const at = from + c * stride + t;
      transpose_square(at, at + stride, at + 2 * stride, at + 3 * stride, panel + t * kColumns + c, kColumns);
    }
  }
}

// Outputs and channels whose sums stay in the second cache.
constexpr std::int64_t kGradientsAtOnce = up_to(kTileRows, 64), kChannelsAtOnce = 64;

// dw of one output from sums for `channels` channels. `sums`: 9 rows of `stride`, what earlier tiles gave.
inline void put_weight_gradients(const float* s, std::int64_t between, std::int64_t channels, bool first, bool last,
                                 double* sums, std::int64_t stride, float* dw) {
  for (std::int64_t c = 0; c < channels; c += kWidth) {
    Vf from[4][4], g[3][3];
    BOOST_EXT_EACH_OF(4, a) BOOST_EXT_EACH_OF(4, b) from[a][b] = load_floats(s + (4 * a + b) * between + c);
    transform_weight_gradients(from, g);
    float lanes[9][kWidth];
    for (int t = 0; t < 9; ++t) {
      const Vf found = g[t / 3][t % 3];
      if (first && last) {
        put(lanes[t], found);
        continue;
      }
      double* const of_these = sums + t * stride + c;
      Vd low = widen_low(found), high = widen_high(found);
      if (!first) {
        low += vector_at(of_these);
        high += vector_at(of_these + kWidth / 2);
      }
      put(of_these, low);
      put(of_these + kWidth / 2, high);
      if (last) {
        for (int l = 0; l < kWidth; ++l) lanes[t][l] = static_cast<float>(of_these[l]);
      }
    }
    for (std::int64_t l = 0; last && l < smaller(kWidth, channels - c); ++l) {
      for (int t = 0; t < 9; ++t) dw[(c + l) * 9 + t] = lanes[t][l];
    }
  }
}

// Products are summed over a slab of tiles in float32, and beyond in float64.
template <bool kNarrow> class TiledWeightGradient {
 public:
  TiledWeightGradient(int threads, const float* dy, const float* x, const Layer& of, float* dw)
      : of_(of),
        tiles_(of.images, of.oh, of.ow),
        dy_(dy),
        x_(x),
        dw_(dw),
        rows_(up_to(kTileRows, of.outputs)),
        panels_(padded<float>(of.channels) / kColumns),
        columns_(quotient_up(of.channels, kChannelsAtOnce)) {
    const std::int64_t slabs = quotient_up(tiles_.count, kSlab), size = of.outputs * 9 * columns_ * kChannelsAtOnce;
    if (slabs < kRanges || size > kSmall) {
      Scratch<float> left(kElements * left_stride()), right(kElements * right_stride());
      Scratch<double> sums(slabs > 1 ? size : 0);
      for (std::int64_t s = 0; s < slabs; ++s) {
        add_slab(threads, s * kSlab, s == 0, s + 1 == slabs, left.get(), right.get(), sums.get());
      }
      return;
    }
    // One thread computes all of a range of tiles; as many whatever the number of threads.
    Scratch<double> sums(kRanges * size);
    on_threads(threads, work(tiles_.count), kRanges, [&](std::int64_t begin, std::int64_t end) {
      Scratch<float> left(kElements * left_stride()), right(kElements * right_stride());
      for (std::int64_t range = begin; range < end; ++range) {
        const std::int64_t first = range * slabs / kRanges;
        for (std::int64_t s = first; s < (range + 1) * slabs / kRanges; ++s) {
          add_slab(1, s * kSlab, s == first, false, left.get(), right.get(), sums.get() + range * size);
        }
      }
    });
    on_threads(threads, 2 * kRanges * size, of.outputs, [&](std::int64_t begin, std::int64_t end) {
      const std::int64_t width = columns_ * kChannelsAtOnce;
      for (std::int64_t row = 9 * begin; row < 9 * end; ++row) {
        double* const total = sums.get() + row * width;
        for (std::int64_t range = 1; range < kRanges; ++range) {
          for (std::int64_t c = 0; c < of_.channels; ++c) total[c] += total[range * size + c];
        }
        float* const to = dw_ + row / 9 * of_.channels * 9 + row % 9;
        for (std::int64_t c = 0; c < of_.channels; ++c) to[c * 9] = static_cast<float>(total[c]);
      }
    });
  }

 private:
  static constexpr std::int64_t kColumns = kTileColumns<float>, kRow = kRowWords<kNarrow>;
  static constexpr std::int64_t kPart = 32;        // tiles that are transposed at a time
  static constexpr std::int64_t kRanges = 16;      // of tiles
  static constexpr std::int64_t kSmall = 1 << 18;  // sums of a range

  // Left factors have a row for each output, right ones a column for each channel.
  std::int64_t left_stride() const { return rows_ * kRow + kApart; }
  std::int64_t right_stride() const { return panels_ * kColumns * kRow + kApart; }
  std::int64_t work(std::int64_t tiles) const { return kElements * of_.outputs * tiles * of_.channels / 8; }

  void add_slab(int threads, std::int64_t begins, bool first, bool last, float* left, float* right, double* sums) {
    const std::int64_t tiles = smaller(kSlab, tiles_.count - begins);
    on_threads(threads, 2 * kElements * tiles * rows_, rows_, [&](std::int64_t begin, std::int64_t end) {
      Windows<2> windows(tiles_, of_.oh, of_.ow, 0, 0, kSlab);
      alignas(64) float lines[kElements][kNarrow ? kSlab : 1];
      for (std::int64_t row = begin; row < end; ++row) {
        const std::int64_t positions = of_.oh * of_.ow, o = smaller(row, of_.outputs - 1);
        windows.read(dy_ + o * positions, of_.outputs * positions, begins, tiles);
        for (std::int64_t t = 0; t < tiles; t += kWidth) {
          Vf d[2][2], p[4][4];
          windows.take(t, d);
          transform_output_gradients(d, p);
          float* const to = (kNarrow ? lines[0] : left + row * kRow) + t;
          const std::int64_t step = kNarrow ? kSlab : left_stride();
          BOOST_EXT_EACH_OF(4, a) BOOST_EXT_EACH_OF(4, b) put(to + (4 * a + b) * step, p[a][b]);
        }
        for (int e = 0; kNarrow && e < kElements; ++e) {
          narrow_line(lines[e], tiles, left + row * kRow + e * left_stride());
        }
      }
    });
    on_threads(threads, 2 * kElements * tiles * of_.channels, panels_, [&](std::int64_t begin, std::int64_t end) {
      Windows<4> windows(tiles_, of_.h, of_.w, of_.top, of_.left, kPart);
      Scratch<float> found(kElements * (kColumns * kPart + kApart));
      for (std::int64_t panel = begin; panel < end; ++panel) {
        for (std::int64_t t = 0; t < tiles; t += kPart) {
          fill(windows, panel * kColumns, begins + t, smaller(kPart, tiles - t), found.get(),
               right + (panel * kRow + words<kNarrow>(t)) * kColumns);
        }
      }
    });
    const std::int64_t parts = quotient_up(of_.outputs, kGradientsAtOnce);
    on_threads(threads, work(tiles), parts * columns_, [&](std::int64_t begin, std::int64_t end) {
      Scratch<float> products(kElements * kStride);
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t o = i / columns_ * kGradientsAtOnce, c = i % columns_ * kChannelsAtOnce;
        const std::int64_t outputs = smaller(kGradientsAtOnce, of_.outputs - o);
        const std::int64_t channels = smaller(kChannelsAtOnce, of_.channels - c), width = columns_ * kChannelsAtOnce;
        multiply(left + o * kRow, right + c * kRow, tiles, outputs, channels, products.get());
        for (std::int64_t r = 0; r < outputs; ++r) {
          put_weight_gradients(products.get() + r * kChannelsAtOnce, kStride, channels, first, last,
                               sums + (o + r) * 9 * width + c, width, dw_ + ((o + r) * of_.channels + c) * 9);
        }
      }
    });
  }

  // Rows of a panel of each right factor.
  void fill(Windows<4>& windows, std::int64_t channel, std::int64_t first, std::int64_t tiles, float* found,
            float* panel) const {
    constexpr std::int64_t kBetween = kColumns * kPart + kApart;
    for (std::int64_t column = 0; column < kColumns; ++column) {
      const std::int64_t c = smaller(channel + column, of_.channels - 1);
      windows.read(x_ + c * of_.h * of_.w, of_.channels * of_.h * of_.w, first, tiles);
      for (std::int64_t t = 0; t < tiles; t += kWidth) {
        Vf d[4][4];
        windows.take(t, d);
        transform_inputs(d);
        float* const to = found + column * kPart + t;
        BOOST_EXT_EACH_OF(4, a) BOOST_EXT_EACH_OF(4, b) put(to + (4 * a + b) * kBetween, d[a][b]);
      }
      for (int e = 0; kNarrow && e < kElements; ++e) {
        float* const line = found + e * kBetween + column * kPart;
        narrow_line(line, tiles, line);
      }
    }
    for (int e = 0; e < kElements; ++e) {
      put_columns<kColumns>(found + e * kBetween, kPart, words<kNarrow>(tiles), panel + e * right_stride());
    }
  }

  void multiply(const float* left, const float* right, std::int64_t tiles, std::int64_t outputs, std::int64_t channels,
                float* products) const {
    for (int e = 0; e < kElements; ++e) {
      for (std::int64_t n = 0; n < channels; n += kColumns) {
        for (std::int64_t r = 0; r < outputs; r += kTileRows) {
          Tile<float> tile;
          multiply_slab<kNarrow>(left + e * left_stride() + r * kRow, right + e * right_stride() + n * kRow, tiles,
                                 tile);
          add_tile(tile, true, products + e * kStride + r * kChannelsAtOnce + n, kChannelsAtOnce);
        }
      }
    }
  }

  static constexpr std::int64_t kStride = kGradientsAtOnce * kChannelsAtOnce + kApart;
  const Layer of_;
  const Tiles tiles_;
  const float* dy_;
  const float* x_;
  float* dw_;
  std::int64_t rows_, panels_, columns_;
};

inline void put_convolution(const Context& context, const float* x, const float* w, bool turned, const Layer& of,
                            float* y) {
  in_precision(context.narrow_products,
               [&](auto is_narrow) { TiledConvolution<is_narrow>(context.threads, x, w, turned, of, y); });
}
inline void put_weight_gradient(const Context& context, const float* dy, const float* x, const Layer& of, float* dw) {
  in_precision(context.narrow_products,
               [&](auto is_narrow) { TiledWeightGradient<is_narrow>(context.threads, dy, x, of, dw); });
}

}  // namespace boost_ext::cpu::BOOST_EXT_ISA
