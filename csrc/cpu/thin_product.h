// Products of matrices of which one is thin: a few rows or columns, so that the large one, which is read or written
// once, binds them. It is walked along its rows, as memory likes it; the panels of product_tiles.h would go down its
// columns. Sums are those of that file.
#pragma once

#include "cpu/image_rows.h"
#include "cpu/products.h"

namespace boost_ext::cpu::BOOST_EXT_ISA {

constexpr std::int64_t kThin = 32;  // rows at most

#if defined(__AVX512F__)
constexpr int kThinSums = 24, kDeep = 8;  // vectors of sums in registers; rows of b at once
#elif defined(__aarch64__)
constexpr int kThinSums = 24, kDeep = 4;
#elif defined(__AVX2__)
constexpr int kThinSums = 12, kDeep = 4;
#else
constexpr int kThinSums = 12, kDeep = 2;
#endif

struct ThinProduct {
  const float* a;
  const float* b;
  float* out;
  std::int64_t m, k, n;
};

// a, with the lanes of vectors along its rows: kVectors for each column, and so on for the rows after them.
template <int kVectors> class AcrossRows {
 public:
  static constexpr std::int64_t kRows = kVectors * kLanesOf<float>;
  AcrossRows(const float* a, std::int64_t m, std::int64_t k)
      : parts_(quotient_up(m, kRows)), k_(k), data_(parts_ * k * kRows) {
    for (std::int64_t i = 0; i < parts_ * kRows; ++i) {
      float* to = data_.get() + i / kRows * k * kRows + i % kRows;
      for (std::int64_t j = 0; j < k; ++j) to[j * kRows] = i < m ? a[i * k + j] : 0;
    }
  }
  std::int64_t parts() const { return parts_; }
  const float* at(std::int64_t part, std::int64_t column) const { return data_.get() + (part * k_ + column) * kRows; }

 private:
  std::int64_t parts_, k_;
  Scratch<float> data_;
};

// Rows of b at once.
template <int kVectors> constexpr int kThinTile = kThinSums / kVectors < 16 ? kThinSums / kVectors : 16;

// out = a b^T for some of the rows of b (n, k): its elements meet whole columns of a.
template <int kVectors>
void thin_times_rows(const ThinProduct& p, const AcrossRows<kVectors>& across, std::int64_t begin, std::int64_t end) {
  constexpr int kTile = kThinTile<kVectors>;
  constexpr std::int64_t kMostParts = quotient_up(kThin, AcrossRows<kVectors>::kRows);
  constexpr std::int64_t kLine = 16, kLines = kSlab / kLine;  // of memory
  const auto b = reinterpret_cast<std::uintptr_t>(p.b);
  alignas(64) float rows[kTile * kSlab];
  for (std::int64_t j = begin; j < end; j += kTile) {
    Vf sums[kMostParts][kTile][kVectors];
    for (std::int64_t k = 0; k < p.k; k += kSlab) {
      const std::int64_t some = smaller(kSlab, p.k - k);
      for (int t = 0; t < kTile; ++t) copy_row(p.b + smaller(j + t, p.n - 1) * p.k + k, some, rows + t * kSlab);
      const std::int64_t next = k + kSlab < p.k ? j * p.k + k + kSlab : (j + kTile) * p.k;
      for (std::int64_t part = 0; part < across.parts(); ++part) {
        Vf slab[kTile][kVectors] = {};
        const float* x = across.at(part, k);
        for (std::int64_t i = 0; i < some; ++i, x += across.kRows) {
          if (part == 0) {
            const std::int64_t at = next + i / kLines * p.k + i % kLines * kLine;
            __builtin_prefetch(reinterpret_cast<const void*>(b + static_cast<std::uintptr_t>(at) * sizeof(float)));
          }
          Vf right[kVectors];
          BOOST_EXT_EACH_OF(kVectors, v) right[v] = vector_at(x + v * kLanesOf<float>);
          BOOST_EXT_EACH_OF(kTile, t) {
            const Vf left = rows[t * kSlab + i] - Vf{};
            BOOST_EXT_EACH_OF(kVectors, v) slab[t][v] = fused(left, right[v], slab[t][v]);
          }
        }
        BOOST_EXT_EACH_OF(kTile, t) {
          BOOST_EXT_EACH_OF(kVectors, v) sums[part][t][v] = k == 0 ? slab[t][v] : sums[part][t][v] + slab[t][v];
        }
      }
    }
    for (std::int64_t i = 0; i < p.m; ++i) {
      const auto& part = sums[i / across.kRows];
      for (std::int64_t t = 0; t < smaller(kTile, end - j); ++t)
        p.out[i * p.n + j + t] = reinterpret_cast<const float*>(part[t])[i % across.kRows];
    }
  }
}

// out = a b for some of the columns of b (k, n), a strip at a time: its sums stay in the first cache.
class ThinStrip {
 public:
  ThinStrip(const ThinProduct& p) : p_(p), left_(p.m * kSlab), sums_(p.m * kStrip) {}

  void run(std::int64_t begin, std::int64_t end) {
    for (std::int64_t j = begin; j < end; j += kStrip) strip(j, smaller(kStrip, end - j));
  }

 private:
  static constexpr std::int64_t kWide = kTileColumns<float>;
  static constexpr std::int64_t kStrip = 256;
  static_assert(kStrip % kWide == 0);

  void strip(std::int64_t j, std::int64_t columns) {
    for (std::int64_t k = 0; k < p_.k; k += kSlab) {
      const std::int64_t some = smaller(kSlab, p_.k - k);
      for (std::int64_t i = 0; i < p_.m; ++i) copy_row(p_.a + i * p_.k + k, some, left_.get() + i * kSlab);
      std::int64_t r = 0;
      for (; r + kDeep <= some; r += kDeep) add<kDeep>(k + r, r, j, columns);
      for (; r < some; ++r) add<1>(k + r, r, j, columns);
      for (std::int64_t i = 0; i < p_.m; ++i) {
        float* const to = p_.out + i * p_.n + j;
        const float* const from = sums_.get() + i * kStrip;
        if (k == 0)
          std::memcpy(to, from, static_cast<std::size_t>(columns) * sizeof(float));
        else
          sweep(columns, [&](auto io, std::int64_t c, auto)
                             BOOST_EXT_INLINE_LAMBDA { io.store(to + c, io.load(to + c) + io.load(from + c)); });
      }
    }
  }

  // The products with kRows rows of b, of which `r` says how many of the slab came before.
  template <int kRows> void add(std::int64_t k, std::int64_t r, std::int64_t j, std::int64_t columns) {
    const float* from = p_.b + k * p_.n + j;
    std::int64_t c = 0;
    for (; c + kWide <= columns; c += kWide) {
      if (k + 2 * kRows <= p_.k) {
        for (int t = 0; t < kRows; ++t) {
          for (int line = 0; line < kWide; line += 16) __builtin_prefetch(from + (kRows + t) * p_.n + c + line);
        }
      }
      add_wide<kRows>(from + c, p_.n, r, c);
    }
    if (c == columns) return;
    alignas(64) float rest[kRows * kWide] = {};
    for (int t = 0; t < kRows; ++t)
      std::memcpy(rest + t * kWide, from + t * p_.n + c, static_cast<std::size_t>(columns - c) * sizeof(float));
    add_wide<kRows>(rest, kWide, r, c);
  }
  template <int kRows>
  BOOST_EXT_INLINE void add_wide(const float* from, std::int64_t stride, std::int64_t r, std::int64_t c) {
    Vf right[kRows][kTileVectors];
    BOOST_EXT_EACH_OF(kRows, t)
    BOOST_EXT_EACH_OF(kTileVectors, v) right[t][v] = vector_at(from + t * stride + v * kLanesOf<float>);
    const float* left = left_.get() + r;
    float* sums = sums_.get() + c;
    for (std::int64_t i = 0; i < p_.m; ++i, left += kSlab, sums += kStrip) {
      Vf sum[kTileVectors] = {};
      if (r > 0) BOOST_EXT_EACH_OF(kTileVectors, v) sum[v] = vector_at(sums + v * kLanesOf<float>);
      BOOST_EXT_EACH_OF(kRows, t) {
        const Vf x = left[t] - Vf{};
        BOOST_EXT_EACH_OF(kTileVectors, v) sum[v] = fused(x, right[t][v], sum[v]);
      }
      BOOST_EXT_EACH_OF(kTileVectors, v) put(sums + v * kLanesOf<float>, sum[v]);
    }
  }

  const ThinProduct p_;
  Scratch<float> left_, sums_;
};

// out = a^T b for some of its rows, where a (k, m) and b (k, n) have few rows; `panels` holds those of b.
inline void times_thin(const ThinProduct& p, const float* panels, std::int64_t begin, std::int64_t end) {
  constexpr std::int64_t kWide = kTileColumns<float>;
  float left[kThin * kTileRows];
  for (std::int64_t i = begin; i < end; i += kTileRows) {
    const std::int64_t rows = smaller(kTileRows, end - i);
    for (std::int64_t k = 0; k < p.k; ++k) {
      for (int m = 0; m < kTileRows; ++m) left[k * kTileRows + m] = p.a[k * p.m + i + smaller(m, rows - 1)];
    }
    float* const to = p.out + i * p.n;
    for (std::int64_t j = 0; j < p.n; j += kWide) {
      Tile<float> tile;
      multiply_slab<false, 1, kTileRows>(left, panels + j * p.k, p.k, tile);
      if (rows == kTileRows && j + kWide <= p.n) {
        add_tile(tile, true, to + j, p.n);
      } else {
        const auto bytes = static_cast<std::size_t>(smaller(kWide, p.n - j)) * sizeof(float);
        for (std::int64_t m = 0; m < rows; ++m) std::memcpy(to + m * p.n + j, tile[m], bytes);
      }
    }
  }
}

// Whether one of these products is it.
inline bool is_thin(std::int64_t m, std::int64_t k, bool transpose_a, bool transpose_b) {
  if (m == 0 || k == 0) return false;
  return transpose_a ? !transpose_b && k <= kThin : m <= kThin;
}

// on_threads() by what is read, written and multiplied.
template <class Body> void over(int threads, const ThinProduct& p, std::int64_t items, Body body) {
  const std::int64_t moved = larger(p.m * p.n, p.k * larger(p.m, p.n));
  on_threads(threads, moved + p.m * p.k * p.n / 8, items, body);
}

template <int kVectors> void multiply_by_rows(int threads, const ThinProduct& p) {
  const AcrossRows<kVectors> across(p.a, p.m, p.k);
  constexpr int kTile = kThinTile<kVectors>;
  over(threads, p, quotient_up(p.n, kTile), [&](std::int64_t begin, std::int64_t end) {
    thin_times_rows(p, across, begin * kTile, smaller(end * kTile, p.n));
  });
}

// Of which is_thin() is true.
inline void multiply_thin(int threads, const ThinProduct& p, bool transpose_a, bool transpose_b) {
  constexpr std::int64_t kWide = kTileColumns<float>;
  if (transpose_a) {
    Scratch<float> panels(padded<float>(p.n) * p.k);
    for (std::int64_t j = 0; j < p.n; j += kWide)
      pack_panel(p.b + j, p.n, p.k, smaller(kWide, p.n - j), 1, panels.get() + j * p.k);
    over(threads, p, quotient_up(p.m, kTileRows), [&](std::int64_t begin, std::int64_t end) {
      times_thin(p, panels.get(), begin * kTileRows, smaller(end * kTileRows, p.m));
    });
  } else if (transpose_b) {
    p.m <= kLanesOf<float> ? multiply_by_rows<1>(threads, p) : multiply_by_rows<kTileVectors>(threads, p);
  } else {
    over(threads, p, quotient_up(p.n, kWide),
         [&](std::int64_t begin, std::int64_t end) { ThinStrip(p).run(begin * kWide, smaller(end * kWide, p.n)); });
  }
}

}  // namespace boost_ext::cpu::BOOST_EXT_ISA
