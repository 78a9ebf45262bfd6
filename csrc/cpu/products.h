// Products of matrices by the tiles of product_tiles.h, or by those of bfloat16_products.h.
#pragma once

#include "cpu/bfloat16_products.h"

namespace boost_ext::cpu::BOOST_EXT_ISA {

// A panel from `rows` rows of up to kTileColumns columns, times `scale`, with zeros to its right.
template <class T>
BOOST_EXT_INLINE const float* pack_panel(const T* from, std::int64_t stride, std::int64_t rows, std::int64_t columns,
                                         float scale, float* panel) {
  constexpr int kWide = kTileColumns<float>;
  float* to = panel;
  for (std::int64_t r = 0; r < rows; ++r, from += stride, to += kWide) {
    if (columns >= kWide) {
      for (int c = 0; c < kWide; c += kLanes) store(to + c, scale * load(from + c));
      continue;
    }
    for (int c = 0; c < kWide; ++c) to[c] = 0;
    sweep(columns,
          [&](auto io, std::int64_t i, auto) BOOST_EXT_INLINE_LAMBDA { io.store(to + i, scale * io.load(from + i)); });
  }
  return panel;
}

// Where the panel of `some` rows from k on and of the columns from j on begins, if those of a slab lie side by side,
// and have `width` columns together.
template <bool kNarrow>
constexpr std::int64_t panel_place(std::int64_t k, std::int64_t some, std::int64_t width, std::int64_t j) {
  return words<kNarrow>(k) * width + j * words<kNarrow>(some);
}

// A panel from `rows` rows of up to kTileColumns columns, with zeros to its right; of words, if kNarrow.
template <bool kNarrow>
BOOST_EXT_INLINE void pack_rows(const float* from, std::int64_t stride, std::int64_t rows, std::int64_t columns,
                                float* panel) {
  if constexpr (kNarrow) {
    constexpr std::int64_t kWide = kTileColumns<float>;
    const std::int64_t some = smaller(kWide, columns);
    for (std::int64_t r = 0; r < rows; r += 2, from += 2 * stride, panel += kWide) {
      narrow_pair(from, r + 1 < rows ? from + stride : nullptr, some, panel);
      for (std::int64_t c = some; c < kWide; ++c) panel[c] = 0;
    }
  } else {
    pack_panel(from, stride, rows, columns, 1, panel);
  }
}

// The same of the transpose: panel[r][c] = from[c][r].
template <bool kNarrow>
void pack_columns(const float* from, std::int64_t stride, std::int64_t rows, std::int64_t columns, float* panel) {
  constexpr std::int64_t kWide = kTileColumns<float>;
  const std::int64_t some = smaller(kWide, columns);
  if constexpr (kNarrow) {
    alignas(64) float lines[kWide][kSlab / 2];
    for (std::int64_t c = 0; c < some; ++c) narrow_line(from + c * stride, rows, lines[c]);
    transpose(lines[0], kSlab / 2, some, words<true>(rows), panel, kWide);
  } else {
    transpose(from, stride, some, rows, panel, kWide);
  }
  for (std::int64_t r = 0; r < words<kNarrow>(rows); ++r) {
    for (std::int64_t c = some; c < kWide; ++c) panel[r * kWide + c] = 0;
  }
}

// `some` numbers of each of `rows` rows of a left factor, and its last row again up to whole tiles.
template <bool kNarrow>
void pack_left(const float* from, std::int64_t stride, std::int64_t rows, std::int64_t some, float* left) {
  for (std::int64_t m = 0; m < up_to(kTileRows, rows); ++m, left += kRowWords<kNarrow>) {
    const float* const row = from + (m < rows ? m : rows - 1) * stride;
    if constexpr (kNarrow)
      narrow_line(row, some, left);
    else
      copy_row(row, some, left);
  }
}

// Memory of one thread for multiply(): `rows` rows of a left factor.
class ProductBuffers {
 public:
  explicit ProductBuffers(std::int64_t rows)
      : left(up_to(kTileRows, rows) * kSlab), panel(kSlab * kTileColumns<float>) {}
  Scratch<float> left, panel;
};

constexpr std::int64_t kGroup = 512;  // columns of a product that stay in the second cache

// out = a b, for `rows` rows of a, which has rows of `stride`; b has `inner` rows, and pack(first, count, column,
// panel) says where a panel of them lies: in `panel`, which it may fill, or elsewhere. out has rows of out_stride, and
// room up to whole tiles. If `upper`, only tiles with elements on the diagonal or above are written. If kNarrow,
// factors are rounded to bfloat16, and panels are of words.
template <bool kNarrow = false, class Pack>
void multiply(const float* a, std::int64_t stride, std::int64_t rows, std::int64_t inner, std::int64_t columns,
              Pack pack, ProductBuffers& buffers, float* out, std::int64_t out_stride, bool upper = false) {
  constexpr std::int64_t kRow = kRowWords<kNarrow>;
  const std::int64_t width = padded<float>(columns), all_rows = up_to(kTileRows, rows);
  float* const left = buffers.left.get();
  for (std::int64_t group = 0; group < width; group += kGroup) {
    for (std::int64_t k = 0; k < inner; k += kSlab) {
      const std::int64_t some = smaller(kSlab, inner - k), end = smaller(group + kGroup, width);
      pack_left<kNarrow>(a + k, stride, rows, some, left);
      for (std::int64_t j = group; j < end; j += kTileColumns<float>) {
        const float* const panel = pack(k, some, j, buffers.panel.get());
        const std::int64_t last = upper ? smaller(all_rows, j + kTileColumns<float>) : all_rows;
        for (std::int64_t i = 0; i < last; i += kTileRows) {
          Tile<float> tile;
          multiply_slab<kNarrow>(left + i * kRow, panel, some, tile);
          add_tile(tile, k == 0, out + i * out_stride + j, out_stride);
        }
      }
    }
  }
}

}  // namespace boost_ext::cpu::BOOST_EXT_ISA
