#include "ops/precondition.h"

#include "cpu/products.h"

namespace boost_ext::cpu::BOOST_EXT_ISA {
namespace {

constexpr std::int64_t kStrip = 256;        // rows that are one unit of work,
constexpr std::int64_t kFewestRows = 64;    // or fewer of few gradients:
constexpr std::int64_t kUnitsOfThread = 2;  // so many units for each thread
constexpr std::int64_t kDiagonalColumns = 128;
constexpr std::int64_t kPlainBlock = 16384;

// One unit of work: some rows of a block of the gradient. `corner` and `inner` are the first row and the rows of that
// block.
struct Strip {
  std::int64_t corner, inner, row, rows, column, columns;
};

// The strips of a gradient, by the blocks of its factors.
struct Grid {
  std::int64_t rows, columns, high, wide, across, strips, count;  // sizes, extents of a block, blocks in a row, strips
  std::int64_t tall;                                              // rows of a strip
  Grid(const View& g, Factor left, Factor right, std::int64_t rows_of_strip) : tall(rows_of_strip) {
    const bool plain = left.data == nullptr;
    rows = plain ? 1 : g.rows;
    columns = g.size == 0 ? 0 : g.size / rows;
    high = left.block > 0 ? left.block : kStrip;
    wide = plain ? kPlainBlock : right.block > 0 ? right.block : kDiagonalColumns;
    across = quotient_up(columns, wide);
    strips = quotient_up(smaller(high, rows), tall);
    count = columns == 0 ? 0 : quotient_up(rows, high) * strips * across;
  }
  // Without rows where the last block has fewer strips.
  Strip strip(std::int64_t i) const {
    const std::int64_t line = i / across, column = i % across * wide, corner = line / strips * high;
    const std::int64_t inner = smaller(high, rows - corner), first = line % strips * tall;
    return {corner, inner, corner + first, smaller(tall, inner - first), column, smaller(wide, columns - column)};
  }
};

// What one thread works with, for strips of up to `columns` columns.
class Worker {
 public:
  explicit Worker(std::int64_t columns)
      : buffers_(kStrip),
        product_(up_to(kTileRows, kStrip) * padded<float>(columns)),
        result_(up_to(kTileRows, kStrip) * padded<float>(columns)) {}

  template <class T>
  void run(const T* g, std::int64_t stride, float scale, Strip p, Factor left, Factor right, float* out) {
    const std::int64_t width = padded<float>(p.columns);
    float* now = product_.get();
    if (left.block > 0) {
      const float* const rows = left.data + p.row * left.block;
      const T* const corner = g + p.corner * stride + p.column;
      const auto pack = [&](std::int64_t k, std::int64_t count, std::int64_t j, float* panel) {
        return pack_panel(corner + k * stride + j, stride, count, p.columns - j, scale, panel);
      };
      multiply(rows, left.block, p.rows, p.inner, p.columns, pack, buffers_, now, width);
    } else {
      for (std::int64_t r = 0; r < p.rows; ++r) {
        const T* const from = g + (p.row + r) * stride + p.column;
        const float by = left.data[p.row + r];
        sweep(p.columns, [&](auto io, std::int64_t i, auto) BOOST_EXT_INLINE_LAMBDA {
          io.store(now + r * width + i, by * (scale * io.load(from + i)));
        });
      }
    }
    if (right.block > 0) {
      const float* const block = right.data + p.column * right.block;
      const auto pack = [&](std::int64_t k, std::int64_t count, std::int64_t j, float* panel) {
        return pack_panel(block + k * right.block + j, right.block, count, p.columns - j, 1, panel);
      };
      multiply(now, width, p.rows, p.columns, p.columns, pack, buffers_, result_.get(), width);
      now = result_.get();
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
  ProductBuffers buffers_;
  Scratch<float> product_, result_;
};

}  // namespace

void precondition(const Context& context, float inv_scale, Tensors grads, const Factor* left, const Factor* right,
                  Tensors out) {
  Scratch<std::int64_t> first(grads.count + 1);  // strips before each tensor
  std::int64_t work = 0, columns = kDiagonalColumns, tall = kStrip;
  const std::int64_t wanted = context.threads > 1 ? kUnitsOfThread * context.threads : 1;
  const auto count_strips = [&] {
    first[0] = 0;
    for (std::int64_t t = 0; t < grads.count; ++t) {
      first[t + 1] = first[t] + Grid(grads[t], left[t], right[t], tall).count;
    }
    return first[grads.count];
  };
  while (count_strips() < wanted && tall > kFewestRows) tall /= 2;
  for (std::int64_t t = 0; t < grads.count; ++t) {
    work += grads[t].size * (4 + (left[t].block + right[t].block) / 4);
    const std::int64_t all = Grid(grads[t], left[t], right[t], tall).columns;
    const std::int64_t wide = right[t].block > 0 ? smaller(right[t].block, all) : 0;
    columns = wide > columns ? wide : columns;
  }
  on_threads(context.threads, work, first[grads.count], [&](std::int64_t begin, std::int64_t end) {
    Worker worker(columns);
    std::int64_t t = 0;
    for (std::int64_t u = begin; u < end; ++u) {
      while (first[t + 1] <= u) ++t;
      const Grid grid(grads[t], left[t], right[t], tall);
      const Strip p = grid.strip(u - first[t]);
      auto* to = static_cast<float*>(out[t].data);
      typed(grads[t], [&](const auto* g) {
        if (p.rows <= 0) return;
        if (left[t].data != nullptr) return worker.run(g, grid.columns, inv_scale, p, left[t], right[t], to);
        sweep(p.columns, [&](auto io, std::int64_t i, auto) BOOST_EXT_INLINE_LAMBDA {
          io.store(to + p.column + i, inv_scale * io.load(g + p.column + i));
        });
      });
    }
  });
}

}  // namespace boost_ext::cpu::BOOST_EXT_ISA
