#include "ops/precondition.h"

#include "cpu/tiles.h"

namespace boost_ext::cpu::BOOST_EXT_ISA {
namespace {

constexpr std::int64_t kDiagonalBlock = 128;
constexpr std::int64_t kPlainBlock = 16384;

std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

// What one unit of work reads and writes: a block of the gradient with the blocks of its factors.
struct Piece {
  std::int64_t row, rows, column, columns;
};

// The pieces of a gradient, by the blocks of its factors.
struct Grid {
  std::int64_t rows, columns, high, wide, across, count;  // sizes, extents of a block, blocks in a row, all blocks
  Grid(const View& g, Factor left, Factor right) {
    const bool plain = left.data == nullptr;
    rows = plain ? 1 : g.rows;
    columns = g.size == 0 ? 0 : g.size / rows;
    high = left.block > 0 ? left.block : kDiagonalBlock;
    wide = plain ? kPlainBlock : right.block > 0 ? right.block : kDiagonalBlock;
    across = (columns + wide - 1) / wide;
    count = (rows + high - 1) / high * across;
  }
  Piece piece(std::int64_t i) const {
    const std::int64_t row = i / across * high, column = i % across * wide;
    return {row, smaller(high, rows - row), column, smaller(wide, columns - column)};
  }
};

// Rows of a matrix into a buffer with rows of `width`: zeros at their ends, and up to a multiple of four rows.
template <class T>
void copy_in(const T* from, std::int64_t stride, std::int64_t rows, std::int64_t columns, float scale,
             std::int64_t width, float* to) {
  const std::int64_t all_rows = (rows + kTileRows - 1) / kTileRows * kTileRows;
  for (std::int64_t r = 0; r < all_rows; ++r) {
    float* row = to + r * width;
    for (std::int64_t c = 0; c < width; ++c) row[c] = 0;
    if (r >= rows) continue;
    const T* line = from + r * stride;
    sweep(columns,
          [&](auto io, std::int64_t i, auto) BOOST_EXT_INLINE_LAMBDA { io.store(row + i, scale * io.load(line + i)); });
  }
}

// out = a b; a with rows up to a multiple of four, b and out with rows of `width`, a multiple of sixteen.
void multiply(const float* a, std::int64_t stride, const float* b, std::int64_t rows, std::int64_t inner,
              std::int64_t width, float* out) {
  for (std::int64_t i = 0; i < rows; i += kTileRows) {
    for (std::int64_t j = 0; j < width; j += kLanes) {
      for (std::int64_t k = 0; k < inner; k += kSlab) {
        F tile[kTileRows];
        multiply_tile(a + i * stride + k, stride, 1, b + k * width + j, width, smaller(kSlab, inner - k), tile);
        for (std::int64_t m = 0; m < kTileRows; ++m) {
          float* to = out + (i + m) * width + j;
          store(to, k == 0 ? tile[m] : load(to) + tile[m]);
        }
      }
    }
  }
}

// Buffers of one thread, for blocks up to `extent`.
class Buffers {
 public:
  explicit Buffers(std::int64_t extent)
      : side_(padded(extent) + kTileRows), g_(side_ * side_), f_(side_ * side_), t_(side_ * side_) {}

  template <class T>
  void run(const T* g, std::int64_t stride, float scale, Piece p, Factor left, Factor right, float* out) {
    const std::int64_t width = padded(p.columns);
    copy_in(g + p.row * stride + p.column, stride, p.rows, p.columns, scale, width, g_.get());
    float* now = g_.get();
    float* next = t_.get();
    if (left.block > 0) {
      const std::int64_t b = left.block, inner = padded(p.rows);
      copy_in(left.data + p.row * b, b, p.rows, p.rows, 1, inner, f_.get());
      multiply(f_.get(), inner, now, p.rows, p.rows, width, next);
      float* const was = now;
      now = next, next = was;
    } else {
      for (std::int64_t r = 0; r < p.rows; ++r) {
        for (std::int64_t c = 0; c < p.columns; ++c) now[r * width + c] *= left.data[p.row + r];
      }
    }
    if (right.block > 0) {
      const std::int64_t b = right.block;
      copy_in(right.data + p.column * b, b, p.columns, p.columns, 1, width, f_.get());
      multiply(now, width, f_.get(), p.rows, p.columns, width, next);
      now = next;
    } else {
      for (std::int64_t r = 0; r < p.rows; ++r) {
        for (std::int64_t c = 0; c < p.columns; ++c) now[r * width + c] *= right.data[p.column + c];
      }
    }
    for (std::int64_t r = 0; r < p.rows; ++r) {
      std::memcpy(out + (p.row + r) * stride + p.column, now + r * width,
                  static_cast<std::size_t>(p.columns) * sizeof(float));
    }
  }

 private:
  std::int64_t side_;
  Scratch<float> g_, f_, t_;
};

}  // namespace

void precondition(const Context& context, float inv_scale, Tensors grads, const Factor* left, const Factor* right,
                  Tensors out) {
  Scratch<std::int64_t> first(grads.count + 1);  // pieces before each tensor
  std::int64_t work = first[0] = 0, extent = kDiagonalBlock;
  for (std::int64_t t = 0; t < grads.count; ++t) {
    first[t + 1] = first[t] + Grid(grads[t], left[t], right[t]).count;
    work += grads[t].size * (1 + (left[t].block + right[t].block) / 4);
    for (const Factor& f : {left[t], right[t]}) extent = f.block > extent ? f.block : extent;
  }
  on_threads(context.threads, work, first[grads.count], [&](std::int64_t begin, std::int64_t end) {
    Buffers buffers(extent);
    std::int64_t t = 0;
    for (std::int64_t u = begin; u < end; ++u) {
      while (first[t + 1] <= u) ++t;
      const Grid grid(grads[t], left[t], right[t]);
      const Piece p = grid.piece(u - first[t]);
      auto* to = static_cast<float*>(out[t].data);
      typed(grads[t], [&](const auto* g) {
        if (left[t].data != nullptr) return buffers.run(g, grid.columns, inv_scale, p, left[t], right[t], to);
        sweep(p.columns, [&](auto io, std::int64_t i, auto) BOOST_EXT_INLINE_LAMBDA {
          io.store(to + p.column + i, inv_scale * io.load(g + p.column + i));
        });
      });
    }
  });
}

}  // namespace boost_ext::cpu::BOOST_EXT_ISA
