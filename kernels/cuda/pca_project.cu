// See ops/pca_project.h.
#include "ops/pca_project.h"
#include "projection.cuh"

namespace boost_ext::cuda {
namespace {

constexpr int kWarps = kThreads / kWarp;
constexpr int kRows = 32;  // of P that a block works on: once for all of them it reads its chunk of the gradient

// Where element i of a chunk lies in shared memory: a lane reads the elements that belong to its vector of P four at a
// time, and lanes beside one another read fours beside one another.
template <class T> BOOST_EXT_DEVICE int place(int i) {
  constexpr int kStep = kWarp * kVector<T>;
  const int in_step = i % kStep, in_vector = i % kVector<T>;
  return i - in_step + in_vector / 4 * (4 * kWarp) + in_step / kVector<T> * 4 + i % 4;
}

// The chunk of the gradient in float32, and zeros behind it.
template <class T> BOOST_EXT_DEVICE void load_chunk(const Table<2>& table, const Chunk& chunk, float* g) {
  const Source grads = source(table, 0, chunk);
  each_pack<true>(chunk, [&](std::int64_t i, Count n) {
    const Pack x = load_pack(grads.data, grads.type, i, n, chunk.aligned);
    const int at = static_cast<int>(i - chunk.begin);
#pragma unroll
    for (int e = 0; e < kPack; e += 4) {
      *reinterpret_cast<float4*>(g + place<T>(at + e)) = make_float4(x.v[e], x.v[e + 1], x.v[e + 2], x.v[e + 3]);
    }
  });
  __syncthreads();
}

// <p, g> over `count` elements, of which this lane takes every 32nd vector, whatever p is aligned to.
template <int kBytes, class T> BOOST_EXT_DEVICE double dot(const T* p, const float4* g, int count) {
  constexpr int kStep = kWarp * kVector<T>;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  float sums[kVector<T>] = {};
  int i = lane * kVector<T>;
  g += lane;
#pragma unroll 4
  for (; i + kVector<T> <= count; i += kStep, g += kStep / 4) {
    const Vector x = load_vector<kBytes>(p + i);
#pragma unroll
    for (int e = 0; e < kVector<T>; e += 4) {
      const float4 y = g[e / 4 * kWarp];
      sums[e] += element<T>(x, e) * y.x;
      sums[e + 1] += element<T>(x, e + 1) * y.y;
      sums[e + 2] += element<T>(x, e + 2) * y.z;
      sums[e + 3] += element<T>(x, e + 3) * y.w;
    }
  }
#pragma unroll
  for (int e = 0; e < kVector<T>; ++e) {
    if (i + e < count) sums[e] += as_float(p[i + e]) * reinterpret_cast<const float*>(g + e / 4 * kWarp)[e % 4];
  }
#pragma unroll
  for (int half = kVector<T> / 2; half > 0; half /= 2) {
#pragma unroll
    for (int e = 0; e < half; ++e) sums[e] += sums[e + half];
  }
  return static_cast<double>(sums[0]);
}

// The elements of the gradient that belong to a vector of codes, and their sum with these, in two lanes.
struct Factors {
  float v[kVector<Code>];
  BOOST_EXT_DEVICE explicit Factors(const float4* g) {
#pragma unroll
    for (int e = 0; e < kVector<Code>; e += 4) {
      const float4 y = g[e / 4 * kWarp];
      v[e] = y.x, v[e + 1] = y.y, v[e + 2] = y.z, v[e + 3] = y.w;
    }
  }
  BOOST_EXT_DEVICE float dot(const Vector& x) const {
    float sums[2] = {element<Code>(x, 0) * v[0], element<Code>(x, 1) * v[1]};
#pragma unroll
    for (int e = 2; e < kVector<Code>; ++e) sums[e % 2] = __fmaf_rn(element<Code>(x, e), v[e], sums[e % 2]);
    return sums[0] + sums[1];
  }
};

// <p, g> of codes from `column` on: the sum over a vector is multiplied with its scale; or over each part of it with
// its own, where a block ends in the vector.
template <int kBytes>
BOOST_EXT_DEVICE double dot_codes(const Code* p, const float4* g, int count, const float* scale, std::int64_t column) {
  constexpr int kCount = kVector<Code>, kStep = kWarp * kCount, kBlock = static_cast<int>(kProjectionBlock);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int start = static_cast<int>(column % kBlock);
  scale += column / kBlock;
  float sum = 0;
  int i = lane * kCount;
  g += lane;
#pragma unroll 1
  for (; i + kCount <= count; i += kStep, g += kStep / 4) {
    const Vector x = load_vector<kBytes>(p + i);
    Factors y(g);
    const int block = (start + i) / kBlock, rest = (block + 1) * kBlock - (start + i);
    if (rest < kCount) {
      Factors next = y;
#pragma unroll
      for (int e = 0; e < kCount; ++e) {
        next.v[e] = e < rest ? 0 : y.v[e];
        y.v[e] = e < rest ? y.v[e] : 0;
      }
      sum = __fmaf_rn(scale[block + 1], next.dot(x), sum);
    }
    sum = __fmaf_rn(scale[block], y.dot(x), sum);
  }
  const auto* last = reinterpret_cast<const float*>(g);
  for (int e = 0; i + e < count && e < kCount; ++e) {
    sum += scale[(start + i + e) / kBlock] * (as_float(p[i + e]) * last[e / 4 * 4 * kWarp + e % 4]);
  }
  return static_cast<double>(sum);
}

// The same of whole chunks of two rows, `apart` elements and `blocks` scales from one to the other, which begin at
// 16 bytes and at a multiple of a vector's columns: no block ends in a vector. An element of the gradient is read once.
BOOST_EXT_DEVICE void dot_aligned(const Code* p, std::int64_t apart, const float4* g, int count, const float* scale,
                                  std::int64_t blocks, double (&dots)[2]) {
  constexpr int kCount = kVector<Code>, kStep = kWarp * kCount, kBlock = static_cast<int>(kProjectionBlock);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  float sums[2] = {};
  p += lane * kCount;
  g += lane;
#pragma unroll 4
  for (int i = 0; i < count; i += kStep, p += kStep, g += kStep / 4, scale += kStep / kBlock) {
    const Factors y(g);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sums[r] = __fmaf_rn(scale[r * blocks], y.dot(load_vector<16>(p + r * apart)), sums[r]);
    }
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) dots[r] = static_cast<double>(sums[r]);
}

template <class T>
BOOST_EXT_DEVICE double dot_row(const T* p, const float4* g, int count, const Scales& scales, std::int64_t row,
                                [[maybe_unused]] std::int64_t column) {
  const unsigned offset = static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(p) % kVectorBytes);
  if constexpr (kCodes<T>) {
    const float* scale = scales.data + row * scales.blocks;
    return offset == 0       ? dot_codes<16>(p, g, count, scale, column)
           : offset % 4 == 0 ? dot_codes<4>(p, g, count, scale, column)
                             : dot_codes<1>(p, g, count, scale, column);
  } else {
    return offset == 0                         ? dot<16>(p, g, count)
           : offset == 8                       ? dot<8>(p, g, count)
           : sizeof(T) == 4 || offset % 4 == 0 ? dot<4>(p, g, count)
                                               : dot<2>(p, g, count);
  }
}

// For lane 0.
BOOST_EXT_DEVICE double sum_of_lanes(double sum) {
#pragma unroll
  for (int other = kWarp / 2; other > 0; other /= 2) sum += __shfl_down_sync(kWholeWarp, sum, other);
  return sum;
}

// Block b: kRows rows and a chunk of columns; blocks beside one another share the chunk. `parts` warps share a row, and
// each leaves its sum in a place of its own.
template <class T>
__global__ void __launch_bounds__(kThreads)
    dot_blocks(const Table<2> __grid_constant__ table, std::int64_t k, std::int64_t n, int tiles, int parts,
               double* partial, std::int64_t places, Scales scales) {
  __shared__ float4 chunk_of_grads[kChunk / 4];
  const std::int64_t block = blockIdx.x / tiles;
  const Chunk chunk = chunk_of(table, block);
  load_chunk<T>(table, chunk, reinterpret_cast<float*>(chunk_of_grads));
  const T* columns = static_cast<const T*>(table.data[1][chunk.t]) + chunk.begin;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int part = warp % parts;
  const int first = part * (kChunk / parts);
  const float4* g = chunk_of_grads + first / 4;
  const int rest = chunk.count - first;
  const int count = rest < kChunk / parts ? rest : kChunk / parts;
  std::int64_t column = 0;
  if constexpr (kCodes<T>) column = scales.column(columns) + first;
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x % tiles) * kRows;
  const std::int64_t end = begin + kRows < k ? begin + kRows : k;
  const int step = kWarps / parts, lane = static_cast<int>(threadIdx.x) % kWarp;
  double* const place = partial + (table.block + block) * parts + part;
  std::int64_t row = begin + warp / parts;
  if constexpr (kCodes<T>) {
    const bool aligned = reinterpret_cast<std::uintptr_t>(columns) % 16 == 0 && n % 16 == 0 && column % 16 == 0;
    const float* scale = scales.data + (column + lane * kVector<T>) / kProjectionBlock;
    for (; aligned && count % (kWarp * kVector<T>) == 0 && row + step < end; row += 2 * step) {
      double sums[2];
      dot_aligned(columns + row * n + first, step * n, g, count, scale + row * scales.blocks, step * scales.blocks,
                  sums);
      // Half a warp adds up one row, the other half the other one, in the order of sum_of_lanes().
      const bool second = lane >= kWarp / 2;
      double sum = second ? sums[1] : sums[0];
      sum += __shfl_xor_sync(kWholeWarp, second ? sums[0] : sums[1], kWarp / 2);
#pragma unroll
      for (int other = kWarp / 4; other > 0; other /= 2) sum += __shfl_down_sync(kWholeWarp, sum, other);
      if (lane % (kWarp / 2) == 0) place[(second ? row + step : row) * places] = sum;
    }
  }
  for (; row < end; row += step) {
    const double sum = sum_of_lanes(dot_row(columns + row * n + first, g, count, scales, row, column));
    if (lane == 0) place[row * places] = sum;
  }
}

// One block a row.
__global__ void add_places(const double* partial, std::int64_t places, float* out) {
  const std::int64_t row = blockIdx.x;
  double sum = 0;
#pragma unroll 4
  for (std::int64_t i = threadIdx.x; i < places; i += kThreads) sum += partial[row * places + i];
  sum = sum_block(sum);
  if (threadIdx.x == 0) out[row] = static_cast<float>(sum);
}

// Of a P with few rows, all warps of a block are to have work.
int warps_a_row(std::int64_t k) {
  int warps = kWarps;
  while (warps > 1 && warps * k > kWarps) warps /= 2;
  return warps;
}

}  // namespace

void pca_project(const Context& context, const View& P, const float* scale, Tensors grads, std::int64_t n, float* out) {
  const OnDevice device(context);
  const std::int64_t k = P.rows;
  const std::int64_t tiles = (k + kRows - 1) / kRows;
  const int parts = warps_a_row(k);
  const std::int64_t places = blocks_of(grads) * parts;
  const Workspace<double> partial(context, k * places);
  const Views columns = columns_of(P, grads);
  each_launch<2>({grads, columns}, [&](const Table<2>& table) {
    with_type(P.dtype, [&](auto element) {
      launch(context, dot_blocks<decltype(element)>, table.blocks() * tiles, kThreads, table, k, n,
             static_cast<int>(tiles), parts, partial.get(), places, Scales(P, scale, n));
    });
  });
  launch(context, add_places, k, kThreads, partial.get(), places, out);
}

}  // namespace boost_ext::cuda
