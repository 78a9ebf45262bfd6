// See ops/precondition.h. A product with blocks on each side is two launches, with L g in between; diagonals are taken
// in where the other product reads or writes. Large ones are cuBLAS's.
#include "blas.cuh"
#include "jobs.cuh"
#include "ops/precondition.h"
#include "tile_product.cuh"

namespace boost_ext::cuda {
namespace {

constexpr std::int64_t kMostBetween = std::int64_t{1} << 26;  // elements of L g in memory at a time

// out = blocks * x, or x * blocks; or without blocks x times both diagonals.
struct Product {
  const void* x;
  const float* blocks;
  const float* by_row;     // diagonal that x is multiplied with first, or nothing
  const float* by_column;  // diagonal that the product is multiplied with, or nothing
  float* out;
  std::int64_t rows, columns, block;
  float scale;  // of x
  DType dtype;  // of x
};

__host__ __device__ std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
__host__ __device__ std::int64_t tiles(std::int64_t n) { return (n + kTile - 1) / kTile; }

// The tiles of a product: a tile is in one block of the factor.
template <bool kLeft> __host__ __device__ std::int64_t tiles_of(const Product& p) {
  const std::int64_t along = kLeft ? p.rows : p.columns, across = kLeft ? p.columns : p.rows;
  return (along + p.block - 1) / p.block * tiles(smaller(p.block, along)) * tiles(across);
}

template <bool kLeft>
__global__ void __launch_bounds__(kThreads, 2) multiply_blocks(const Jobs<Product> __grid_constant__ jobs) {
  __shared__ Tile a, b;
  const int which = job_of(jobs, blockIdx.x);
  const Product& p = jobs.job[which];
  const std::int64_t along = kLeft ? p.rows : p.columns, across = kLeft ? p.columns : p.rows;
  // Neighbours share a block of the factor.
  const std::int64_t unit = blockIdx.x - jobs.first[which], part = quotient(unit, tiles(across));
  const std::int64_t far = (unit - part * tiles(across)) * kTile, a_block = tiles(smaller(p.block, along));
  const std::int64_t index = quotient(part, a_block), from = (part - index * a_block) * kTile;
  const std::int64_t corner = index * p.block, inner = smaller(p.block, along - corner);
  if (from >= inner) return;
  const float* const blocks = p.blocks + index * p.block * p.block;
  const std::int64_t row = kLeft ? corner + from : far, column = kLeft ? far : corner + from;
  const std::int64_t rows = kLeft ? inner - from : p.rows - far, columns = kLeft ? p.columns - far : inner - from;

  const auto x_at = [&](std::int64_t i, std::int64_t j) {
    const float x = p.scale * load(p.x, p.dtype, i * p.columns + j);
    return p.by_row != nullptr ? x * p.by_row[i] : x;
  };
  float next_a[kLoads], next_b[kLoads];
  const auto bring = [&](std::int64_t k) {
#pragma unroll
    for (int l = 0; l < kLoads; ++l) {
      const int e = static_cast<int>(threadIdx.x) + l * kThreads;
      const int m = e / kDepth, n = e % kTile;
      const std::int64_t ka = k + e % kDepth, kb = k + e / kTile;
      next_a[l] = next_b[l] = 0;
      if (m < rows && ka < inner) {
        next_a[l] = kLeft ? blocks[(from + m) * p.block + ka] : x_at(row + m, corner + ka);
      }
      if (n < columns && kb < inner) {
        next_b[l] = kLeft ? x_at(corner + kb, column + n) : blocks[kb * p.block + from + n];
      }
    }
  };
  float sums[kEach][kEach] = {}, total[kEach][kEach] = {};
  bring(0);
  for (std::int64_t k = 0; k < inner; k += kDepth) {
    __syncthreads();
#pragma unroll
    for (int l = 0; l < kLoads; ++l) {
      const int e = static_cast<int>(threadIdx.x) + l * kThreads;
      a.at[e % kDepth][e / kDepth] = next_a[l];
      b.at[e / kTile][e % kTile] = next_b[l];
    }
    __syncthreads();
    if (k + kDepth < inner) bring(k + kDepth);  // while the others are multiplied
    multiply(a, b, sums);
    if ((k + kDepth) % kSlab == 0) carry(total, sums);
  }
  carry(total, sums);
  each_of_tile([&](int i, int j, int m, int n) {
    if (m >= rows || n >= columns) return;
    const float by = p.by_column != nullptr ? p.by_column[column + n] : 1.0F;
    p.out[(row + m) * p.columns + column + n] = total[i][j] * by;
  });
}

// Where there is only one, or none, the others are 1.
__global__ void multiply_diagonals(const Jobs<Product> __grid_constant__ jobs) {
  const int which = job_of(jobs, blockIdx.x);
  const Product& p = jobs.job[which];
  each_of_chunk(jobs, which, p.rows * p.columns, [&](std::int64_t i) {
    const std::int64_t row = quotient(i, p.columns);
    float value = p.scale * load(p.x, p.dtype, i);
    if (p.by_row != nullptr) value *= p.by_row[row];
    if (p.by_column != nullptr) value *= p.by_column[i - row * p.columns];
    p.out[i] = value;
  });
}

__global__ void scale_blocks(const Table<2> __grid_constant__ table, float scale) {
  const Chunk chunk = chunk_of(table, blockIdx.x);
  each_pack_of<1>(chunk, {source(table, 0, chunk)}, [&](std::int64_t i, Count n, auto pack) {
    Pack x = pack(0);
#pragma unroll
    for (int j = 0; j < kPack; ++j) x.v[j] *= scale;
    store_pack(table.data[1][chunk.t], DType::f32, i, n, chunk.aligned, x);
  });
}

// Products that wait to be launched together, with the memory between two of them.
struct Waiting {
  std::vector<Product> left, right;
  std::int64_t between = 0;
};

void launch_all(const Context& context, Waiting& waiting) {
  const Workspace<float> between(context, waiting.between);
  // What has no address yet is in between, in the order of the list.
  std::int64_t at = 0;
  for (Product& p : waiting.left) {
    if (p.out == nullptr) p.out = between.get() + at, at += p.rows * p.columns;
  }
  at = 0;
  for (Product& p : waiting.right) {
    if (p.x == nullptr) p.x = between.get() + at, at += p.rows * p.columns;
  }
  each_launch_of(waiting.left, tiles_of<true>, [&](const Jobs<Product>& jobs) {
    launch(context, multiply_blocks<true>, jobs.blocks(), kThreads, jobs);
  });
  each_launch_of(waiting.right, tiles_of<false>, [&](const Jobs<Product>& jobs) {
    launch(context, multiply_blocks<false>, jobs.blocks(), kThreads, jobs);
  });
  waiting = {};
}

void launch_diagonals(const Context& context, const std::vector<Product>& products) {
  each_launch_of(
      products, [](const Product& p) { return blocks_of(p.rows * p.columns); },
      [&](const Jobs<Product>& jobs) { launch(context, multiply_diagonals, jobs.blocks(), kThreads, jobs); });
}

// Whether cuBLAS multiplies a gradient with its blocks.
bool is_large(const Product& p, const Factor& left, const Factor& right) {
  std::int64_t least = smaller(p.rows, p.columns);
  for (const Factor& f : {left, right}) {
    if (f.block > 0) least = smaller(least, f.block);
  }
  return is_for_blas(least, p.rows < p.columns ? p.columns : p.rows);
}

// p.out = blocks * x, or x * blocks, where x is float32 as it is; all whole blocks in one call, and what is left of the
// last one in another.
void multiply_by_blas(const Blas& blas, const Product& p, bool left) {
  const auto* const x = static_cast<const float*>(p.x);
  const std::int64_t along = left ? p.rows : p.columns, step = left ? p.block * p.columns : p.block;
  const auto multiply = [&](std::int64_t first, std::int64_t count, std::int64_t inner) {
    const Batch<const float> of_x{x + first * step, p.columns, step};
    const Batch<const float> blocks{p.blocks + first * p.block * p.block, p.block, p.block * p.block};
    Gemm<float> g{};
    g.rows = left ? inner : p.rows, g.inner = inner, g.columns = left ? p.columns : inner;
    g.a = left ? blocks : of_x, g.b = left ? of_x : blocks;
    g.c = {p.out + first * step, p.columns, step};
    g.count = count, g.factor = 1;
    if (count > 0 && inner > 0) blas.multiply(g);
  };
  const std::int64_t whole = along / p.block;
  multiply(0, whole, p.block);
  multiply(whole, 1, along - whole * p.block);
}

// p is the gradient; its diagonals are multiplied with it first.
void precondition_by_blas(const Context& context, Product p, const Factor& left, const Factor& right) {
  const std::int64_t size = p.rows * p.columns;
  const bool as_it_is = p.dtype == DType::f32 && p.scale == 1 && p.by_row == nullptr && p.by_column == nullptr;
  const bool both = left.block > 0 && right.block > 0;
  const Workspace<float> wide(context, as_it_is ? 0 : size), between(context, both ? size : 0);
  float* const out = p.out;
  if (!as_it_is) {
    p.out = wide.get();
    launch_diagonals(context, {p});
    p.x = p.out;
  }
  const Blas blas(context);
  if (left.block > 0) {
    p.blocks = left.data, p.block = left.block, p.out = both ? between.get() : out;
    multiply_by_blas(blas, p, true);
    p.x = p.out;
  }
  if (right.block > 0) {
    p.blocks = right.data, p.block = right.block, p.out = out;
    multiply_by_blas(blas, p, false);
  }
}

}  // namespace

void precondition(const Context& context, float inv_scale, Tensors grads, const Factor* left, const Factor* right,
                  Tensors out) {
  const OnDevice device(context);
  Views plain, plain_out;
  std::vector<Product> diagonal;
  Waiting waiting;
  for (std::int64_t t = 0; t < grads.count; ++t) {
    const View& g = grads[t];
    if (g.size == 0) continue;
    if (left[t].data == nullptr) {
      plain.push_back(g);
      plain_out.push_back(out[t]);
      continue;
    }
    const bool by_left = left[t].block > 0, by_right = right[t].block > 0;
    Product p{g.data, nullptr,         nullptr, nullptr,   static_cast<float*>(out[t].data),
              g.rows, g.size / g.rows, 0,       inv_scale, g.dtype};
    if (!by_left) p.by_row = left[t].data;
    if (!by_right) p.by_column = right[t].data;
    if (!by_left && !by_right) diagonal.push_back(p);
    if ((by_left || by_right) && is_large(p, left[t], right[t])) {
      precondition_by_blas(context, p, left[t], right[t]);
      continue;
    }
    if (by_left && by_right && waiting.between > 0 && waiting.between + g.size > kMostBetween) {
      launch_all(context, waiting);
    }
    if (by_left) {
      Product first = p;
      first.blocks = left[t].data;
      first.block = left[t].block;
      if (by_right) {
        first.out = nullptr;
        waiting.between += g.size;
        p.x = nullptr;
        p.dtype = DType::f32;
        p.scale = 1;
      }
      waiting.left.push_back(first);
    }
    if (by_right) {
      p.blocks = right[t].data;
      p.block = right[t].block;
      waiting.right.push_back(p);
    }
  }
  launch_all(context, waiting);
  launch_diagonals(context, diagonal);
  each_launch<2>({plain, plain_out}, [&](const Table<2>& table) {
    launch(context, scale_blocks, table.blocks(), kThreads, table, inv_scale);
  });
}

}  // namespace boost_ext::cuda
