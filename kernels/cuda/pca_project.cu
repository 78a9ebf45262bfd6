// See ops/pca_project.h.
#include "ops/pca_project.h"
#include "projection.cuh"

namespace boost_ext::cuda {
namespace {

constexpr int kWarps = kThreads / kWarp;
constexpr int kRows = 32;  // of P that a block works on: once for all of them it reads its chunk of the gradient

// Where element i of the chunk lies in shared memory: lanes that read four or eight elements apart meet no other lane
// in a bank.
BOOST_EXT_DEVICE int place(int i) { return i + i / kWarp; }

// The chunk of the gradient in float32, and zeros behind it.
BOOST_EXT_DEVICE void load_chunk(const Table<2>& table, const Chunk& chunk, float* g) {
  const void* grads = table.data[0][chunk.t];
  const DType type = table.type(0, chunk.t);
#pragma unroll
  for (int at = static_cast<int>(threadIdx.x); at < kChunk; at += kThreads) {
    g[place(at)] = at < chunk.count ? load(grads, type, chunk.begin + at) : 0.0F;
  }
  __syncthreads();
}

// <p, g> over `count` elements, of which this lane takes every 32nd vector, whatever p is aligned to.
template <int kBytes, class T> BOOST_EXT_DEVICE double dot(const T* p, const float* g, int first, int count) {
  constexpr int kStep = kWarp * kVector<T>;
  float sums[kVector<T>] = {};
  const int lane = static_cast<int>(threadIdx.x) % kWarp * kVector<T>;
  int i = lane;
#pragma unroll 4
  for (; i + kVector<T> <= count; i += kStep) {
    const Vector x = load_vector<kBytes>(p + i);
#pragma unroll
    for (int e = 0; e < kVector<T>; ++e) sums[e] += element<T>(x, e) * g[place(first + i + e)];
  }
#pragma unroll
  for (int e = 0; e < kVector<T>; ++e) {
    if (i + e < count) sums[e] += as_float(p[i + e]) * g[place(first + i + e)];
  }
#pragma unroll
  for (int half = kVector<T> / 2; half > 0; half /= 2) {
#pragma unroll
    for (int e = 0; e < half; ++e) sums[e] += sums[e + half];
  }
  return static_cast<double>(sums[0]);
}

// Block b: kRows rows and a chunk of columns; blocks beside one another share the chunk. `parts` warps share a row, and
// each leaves its sum in a place of its own.
template <class T>
__global__ void __launch_bounds__(kThreads)
    dot_blocks(const __grid_constant__ Table<2> table, std::int64_t k, std::int64_t n, int tiles, int parts,
               double* partial, std::int64_t places) {
  __shared__ float g[kChunk + kChunk / kWarp];
  const std::int64_t block = blockIdx.x / tiles;
  const Chunk chunk = chunk_of(table, block);
  load_chunk(table, chunk, g);
  const T* columns = static_cast<const T*>(table.data[1][chunk.t]) + chunk.begin;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int part = warp % parts;
  const int first = part * (kChunk / parts);
  const int rest = chunk.count - first;
  const int count = rest < kChunk / parts ? rest : kChunk / parts;
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x % tiles) * kRows;
  const std::int64_t end = begin + kRows < k ? begin + kRows : k;
  for (std::int64_t row = begin + warp / parts; row < end; row += kWarps / parts) {
    const T* p = columns + row * n + first;
    const unsigned offset = static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(p) % kVectorBytes);
    double sum = offset == 0                         ? dot<16>(p, g, first, count)
                 : offset == 8                       ? dot<8>(p, g, first, count)
                 : sizeof(T) == 4 || offset % 4 == 0 ? dot<4>(p, g, first, count)
                                                     : dot<2>(p, g, first, count);
#pragma unroll
    for (int half = kWarp / 2; half > 0; half /= 2) sum += __shfl_down_sync(kWholeWarp, sum, half);
    if (threadIdx.x % kWarp == 0) partial[row * places + (table.block + block) * parts + part] = sum;
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

void pca_project(const Context& context, const View& P, Tensors grads, std::int64_t n, float* out) {
  const OnDevice device(context);
  const std::int64_t k = P.rows;
  const std::int64_t tiles = (k + kRows - 1) / kRows;
  const int parts = warps_a_row(k);
  const std::int64_t places = blocks_of(grads) * parts;
  const Workspace<double> partial(context, k * places);
  const std::vector<View> columns = columns_of(P, grads);
  each_launch<2>({grads, columns}, [&](const Table<2>& table) {
    with_type(P.dtype, [&](auto element) {
      launch(context, dot_blocks<decltype(element)>, table.blocks() * tiles, kThreads, table, k, n,
             static_cast<int>(tiles), parts, partial.get(), places);
    });
  });
  launch(context, add_places, k, kThreads, partial.get(), places, out);
}

}  // namespace boost_ext::cuda
