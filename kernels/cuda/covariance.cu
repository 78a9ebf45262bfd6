// See ops/covariance.h. Tiles of the upper triangles of the blocks, each a product of the rows' transpose with the
// rows; a tile has several blocks of threads if there are few tiles, and their sums are added in order.
#include "jobs.cuh"
#include "ops/covariance.h"
#include "tile_product.cuh"

namespace boost_ext::cuda {
namespace {

constexpr int kTileSize = kTile * kTile;
constexpr std::int64_t kWanted = 1024;    // blocks of threads that fill a device
constexpr std::int64_t kLeastRows = 512;  // that are worth a block

__global__ void largest_bits(const Table<1> __grid_constant__ table, unsigned* largest) {
  const Chunk chunk = chunk_of(table, blockIdx.x);
  unsigned mine = 0;
  each_pack_of<1>(chunk, {source(table, 0, chunk)}, [&](std::int64_t, Count, auto pack) {
    const Pack x = pack(0);
#pragma unroll
    for (int j = 0; j < kPack; ++j) {
      const unsigned bits = __float_as_uint(x.v[j]) & 0x7fffffffu;
      mine = bits > mine ? bits : mine;
    }
  });
  mine = reduce_block(mine, [](unsigned a, unsigned b) { return a > b ? a : b; });
  if (threadIdx.x == 0) atomicMax(largest, mine);
}

// A power of two that brings the largest element near 1, if it is far from there: squares of gradients with a large
// loss scale are beyond float32.
BOOST_EXT_DEVICE float normalizer(unsigned bits) {
  constexpr int kFar = 40, kBias = 127;
  const int exponent = static_cast<int>(bits >> 23) - kBias;
  if (bits >= kInfBits || bits < (1u << 23) || (exponent <= kFar && exponent >= -kFar)) return 1;
  return __uint_as_float(static_cast<unsigned>(kBias - (exponent < kBias ? exponent : kBias - 1)) << 23);
}

struct Work {
  const void* x;
  DType dtype;
  Patches p;
  std::int64_t size, rows;           // of all features; of all rows
  std::int64_t block, tiles;         // features of a block; tiles along it
  std::int64_t pairs, parts, share;  // tiles of its upper triangle; parts of the rows, and how many they are
  double factor;
  const unsigned* largest;
  double* sums;  // of all tiles and their parts, if there are several
  double* out;
};

// Which tile of which block; the tile's row is not below its column.
struct Pair {
  std::int64_t block, row, column;
};
BOOST_EXT_DEVICE Pair pair_of(const Work& w, std::int64_t tile) {
  const std::int64_t block = quotient(tile, w.pairs);
  std::int64_t rest = tile - block * w.pairs, row = 0;
  while (rest >= w.tiles - row) {
    rest -= w.tiles - row;
    ++row;
  }
  return {block, row * kTile, (row + rest) * kTile};
}

BOOST_EXT_DEVICE void write(const Work& w, const Pair& at, int m, int n, double sum) {
  const std::int64_t i = at.row + m, j = at.column + n;
  if (i >= w.block || j >= w.block) return;
  const auto scale = static_cast<double>(normalizer(*w.largest));
  const double value = w.factor / (scale * scale) * sum;
  double* const out = w.out + at.block * w.block * w.block;
  out[i * w.block + j] = value;
  if (at.row != at.column) out[j * w.block + i] = value;
}

// Where a row or a feature begins in x, and its place in the image: an element is where both together are.
struct Place {
  std::int64_t offset;
  std::int32_t y, x;
};

BOOST_EXT_DEVICE Place place_of_row(const Patches& p, std::int64_t r) {
  const std::int64_t line = quotient(r, p.ow), image = quotient(line, p.oh);
  const std::int64_t y = (line - image * p.oh) * p.sh - p.top, x = (r - line * p.ow) * p.sw - p.left;
  return {image * p.c * p.h * p.w + y * p.w + x, static_cast<std::int32_t>(y), static_cast<std::int32_t>(x)};
}
BOOST_EXT_DEVICE Place place_of_feature(const Patches& p, std::int64_t f) {
  const std::int64_t line = quotient(f, p.kw), channel = quotient(line, p.kh);
  const std::int64_t y = (line - channel * p.kh) * p.dh, x = (f - line * p.kw) * p.dw;
  return {channel * p.h * p.w + y * p.w + x, static_cast<std::int32_t>(y), static_cast<std::int32_t>(x)};
}

// kImages: neighbours in memory are rows, else features.
template <bool kImages> __global__ void __launch_bounds__(kThreads, 2) sum_rows(const Work __grid_constant__ w) {
  __shared__ Tile a, b;
  __shared__ Place row_at[kSlab], feature_at[2][kTile];
  const std::int64_t tile = quotient(blockIdx.x, w.parts), part = blockIdx.x - tile * w.parts;
  const Pair at = pair_of(w, tile);
  const std::int64_t begin = part * w.share, end = begin + w.share < w.rows ? begin + w.share : w.rows;
  const std::int64_t first = at.block * w.block;
  const float scale = normalizer(*w.largest);
  // Features of the block that there are.
  const std::int64_t features = w.size - first < w.block ? w.size - first : w.block;
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < 2 * kTile) {
    const std::int64_t f = (thread < kTile ? at.row : at.column) + thread % kTile;
    feature_at[thread / kTile][thread % kTile] = place_of_feature(w.p, f < features ? first + f : 0);
  }

  float sums[kEach][kEach] = {};
  double total[kEach][kEach] = {};
  for (std::int64_t slab = begin; slab < end; slab += kSlab) {
    const int some = static_cast<int>(end - slab < kSlab ? end - slab : kSlab);
    __syncthreads();
    if (thread < some) row_at[thread] = place_of_row(w.p, slab + thread);
    __syncthreads();
    float next_a[kLoads], next_b[kLoads];
    const auto element = [&](int k, int side, int n) {
      const std::int64_t f = (side == 0 ? at.row : at.column) + n;
      if (k >= some || f >= features) return 0.0F;
      const Place row = row_at[k], feature = feature_at[side][n];
      const std::int32_t y = row.y + feature.y, x = row.x + feature.x;
      if (y < 0 || y >= w.p.h || x < 0 || x >= w.p.w) return 0.0F;
      return scale * load(w.x, w.dtype, row.offset + feature.offset);
    };
    const auto bring = [&](int k) {
#pragma unroll
      for (int l = 0; l < kLoads; ++l) {
        const int e = thread + l * kThreads;
        const int row = kImages ? e % kDepth : e / kTile, n = kImages ? e / kDepth : e % kTile;
        next_a[l] = element(k + row, 0, n);
        next_b[l] = element(k + row, 1, n);
      }
    };
    bring(0);
    for (int k = 0; k < some; k += kDepth) {
      __syncthreads();
#pragma unroll
      for (int l = 0; l < kLoads; ++l) {
        const int e = thread + l * kThreads;
        const int row = kImages ? e % kDepth : e / kTile, n = kImages ? e / kDepth : e % kTile;
        a.at[row][n] = next_a[l];
        b.at[row][n] = next_b[l];
      }
      __syncthreads();
      if (k + kDepth < some) bring(k + kDepth);  // while the others are multiplied
      multiply(a, b, sums);
    }
    carry(total, sums);
  }
  double* const parts = w.sums + blockIdx.x * static_cast<std::int64_t>(kTileSize);
  each_of_tile([&](int i, int j, int m, int n) {
    if (w.parts == 1)
      write(w, at, m, n, total[i][j]);
    else
      parts[m * kTile + n] = total[i][j];
  });
}

__global__ void add_parts(const Work __grid_constant__ w) {
  const Pair at = pair_of(w, blockIdx.x);
  const double* const parts = w.sums + blockIdx.x * w.parts * kTileSize;
  for (int e = static_cast<int>(threadIdx.x); e < kTileSize; e += kThreads) {
    double sum = 0;
    for (std::int64_t part = 0; part < w.parts; ++part) sum += parts[part * kTileSize + e];
    write(w, at, e / kTile, e % kTile, sum);
  }
}

// Counts are integers, whose sum is the same in any order; they lie where the numbers will be.
static_assert(sizeof(unsigned long long) == sizeof(double));

__global__ void count(const std::int32_t* indices, std::int64_t rows, unsigned long long* counts, std::int64_t size) {
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * kChunk;
  const std::int64_t end = begin + kChunk < rows ? begin + kChunk : rows;
  for (std::int64_t r = begin + threadIdx.x; r < end; r += kThreads) {
    const std::int32_t index = indices[r];
    if (index >= 0 && index < size) atomicAdd(counts + index, 1ull);
  }
}

__global__ void scale_counts(double* out, std::int64_t size, double factor) {
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * kChunk;
  const std::int64_t end = begin + kChunk < size ? begin + kChunk : size;
  for (std::int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
    const auto bits = static_cast<unsigned long long>(__double_as_longlong(out[i]));
    out[i] = static_cast<double>(bits) * factor;
  }
}

}  // namespace

void covariance(const Context& context, const View& x, const Patches& p, double factor, std::int64_t block,
                const View& out) {
  const OnDevice device(context);
  const Workspace<unsigned> largest(context, 1);
  check(cudaMemsetAsync(largest.get(), 0, sizeof(unsigned), stream_of(context)), "covariance");
  const Views all{x};
  each_launch<1>({all}, [&](const Table<1>& table) {
    launch(context, largest_bits, table.blocks(), kThreads, table, largest.get());
  });
  Work w{x.data, x.dtype, p, p.size(), p.rows(),      block,   quotient_up(block, kTile),
         0,      1,       0, factor,   largest.get(), nullptr, static_cast<double*>(out.data)};
  w.pairs = w.tiles * (w.tiles + 1) / 2;
  const std::int64_t tiles = out.rows * w.pairs;
  const std::int64_t fill = quotient_up(kWanted, tiles), most = quotient_up(w.rows, kLeastRows);
  const std::int64_t wanted = most < fill ? most : fill;
  w.share = quotient_up(quotient_up(w.rows, wanted > 0 ? wanted : 1), kSlab) * kSlab;
  w.parts = w.rows > 0 ? quotient_up(w.rows, w.share) : 1;
  const Workspace<double> sums(context, w.parts > 1 ? tiles * w.parts * kTileSize : 0);
  w.sums = sums.get();
  const auto kernel = p.h * p.w > 1 ? sum_rows<true> : sum_rows<false>;
  launch(context, kernel, tiles * w.parts, kThreads, w);
  if (w.parts > 1) launch(context, add_parts, tiles, kThreads, w);
}

void count_indices(const Context& context, const View& indices, double factor, const View& out) {
  const OnDevice device(context);
  if (out.size == 0) return;
  auto* to = static_cast<double*>(out.data);
  check(cudaMemsetAsync(to, 0, static_cast<std::size_t>(out.bytes()), stream_of(context)), "covariance");
  launch(context, count, blocks_of(indices.size), kThreads, static_cast<const std::int32_t*>(indices.data),
         indices.size, reinterpret_cast<unsigned long long*>(to), out.size);
  launch(context, scale_counts, blocks_of(out.size), kThreads, to, out.size, factor);
}

}  // namespace boost_ext::cuda
