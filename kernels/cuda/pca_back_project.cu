// See ops/pca_back_project.h.
#include "ops/pca_back_project.h"
#include "projection.cuh"

namespace boost_ext::cuda {
namespace {

constexpr int kTile = 4;    // vectors that share a pass over P
constexpr int kRows = 256;  // of P, whose coordinates lie in shared memory at a time

template <int kVectors> struct Coordinates {
  const float* v[kVectors];  // nothing of a vector that is not there
};
template <int kVectors> struct alignas(4 * kVectors) Weights {  // of a row
  float v[kVectors];
};

// A thread's elements of the columns of a block: a vector where the block has all of its columns and they are aligned;
// else so far apart that threads beside one another read elements beside one another.
template <int kCount, bool kWhole> BOOST_EXT_DEVICE int mine(int e) {
  const int thread = static_cast<int>(threadIdx.x);
  return kWhole ? thread * kCount + e : e * kThreads + thread;
}

// sums[j][e] += w[r].v[j] * p[r, mine(e)]: one addition a row, in the order of the rows. Of codes the coordinate is
// first multiplied with the scale, and product and addition are one operation; `scale` is that of mine(0) in row 0: of
// mine(e) it is e blocks on, or the same.
template <class T, int kVectors, bool kWhole>
BOOST_EXT_DEVICE void add_rows(const T* p, std::int64_t n, int rows, int count, const Weights<kVectors>* w,
                               [[maybe_unused]] const float* scale, [[maybe_unused]] std::int64_t blocks,
                               float (&sums)[kVectors][kVector<T>]) {
  static_assert(!kCodes<T> || (kThreads == kProjectionBlock && kProjectionBlock % kVector<T> == 0));
  constexpr int kCount = kVector<T>;
  [[maybe_unused]] constexpr int kTogether =
      kCodes<T> ? (kWhole && kVectors <= 2 ? 8 / kVectors : 1)
                : 32 / (kWhole && kVectors <= 2 ? 4 : kCount * (kWhole ? 1 : 2));  // rows in flight at once
#pragma unroll kTogether
  for (int r = 0; r < rows; ++r, p += n) {
    const Weights<kVectors> weights = w[r];
    float x[kCount];
    if constexpr (kWhole) {
      const Vector vector = load_vector<kVectorBytes>(p + mine<kCount, true>(0));
#pragma unroll
      for (int e = 0; e < kCount; ++e) x[e] = element<T>(vector, e);
    } else {
#pragma unroll
      for (int e = 0; e < kCount; ++e) {
        const int i = mine<kCount, false>(e);
        x[e] = i < count ? as_float(p[i]) : 0.0F;
      }
    }
    if constexpr (kCodes<T>) {
#pragma unroll
      for (int e = 0; e < kCount; ++e) {
        const float by = kWhole || mine<kCount, false>(e) < count ? scale[r * blocks + (kWhole ? 0 : e)] : 0.0F;
#pragma unroll
        for (int j = 0; j < kVectors; ++j) sums[j][e] = __fmaf_rn(weights.v[j] * by, x[e], sums[j][e]);
      }
    } else {
#pragma unroll
      for (int j = 0; j < kVectors; ++j) {
#pragma unroll
        for (int e = 0; e < kCount; ++e) sums[j][e] += weights.v[j] * x[e];
      }
    }
  }
}

template <bool kWhole, int kCount>
BOOST_EXT_DEVICE void store_columns(void* p, DType t, int count, const float (&x)[kCount]) {
  constexpr int kQuarters = kCount / 4;
  const int quarter = static_cast<int>(threadIdx.x) * kQuarters;
  if constexpr (!kWhole) {
#pragma unroll
    for (int e = 0; e < kCount; ++e) {
      const int i = mine<kCount, false>(e);
      if (i < count) store(p, t, i, x[e]);
    }
  } else if (t == DType::f32) {
    float4* to = static_cast<float4*>(p) + quarter;
#pragma unroll
    for (int q = 0; q < kQuarters; ++q) to[q] = make_float4(x[4 * q], x[4 * q + 1], x[4 * q + 2], x[4 * q + 3]);
  } else {
    uint2* to = static_cast<uint2*>(p) + quarter;
#pragma unroll
    for (int q = 0; q < kQuarters; ++q) {
      to[q] = make_uint2(half_bits(t, x[4 * q]) | half_bits(t, x[4 * q + 1]) << 16,
                         half_bits(t, x[4 * q + 2]) | half_bits(t, x[4 * q + 3]) << 16);
    }
  }
}

template <class T> constexpr int kColumns = kThreads * kVector<T>;  // of a block

// What a block works on: `count` columns of a chunk, of tensor t from `begin` on.
template <class T, int kVectors, bool kWhole>
BOOST_EXT_DEVICE void add_block(const Table<1 + kVectors>& table, const Coordinates<kVectors>& vectors, std::int64_t k,
                                std::int64_t n, int t, std::int64_t begin, int count, const Scales& scales,
                                Weights<kVectors>* w) {
  const T* p = static_cast<const T*>(table.data[0][t]) + begin;
  const int thread = static_cast<int>(threadIdx.x);
  const float* scale = nullptr;
  if constexpr (kCodes<T>) scale = scales.data + (scales.column(p) + mine<kVector<T>, kWhole>(0)) / kProjectionBlock;
  float sums[kVectors][kVector<T>] = {};
  for (std::int64_t row = 0; row < k; row += kRows, p += kRows * n) {
    const int rows = static_cast<int>(k - row < kRows ? k - row : kRows);
    __syncthreads();  // somebody may still read the last rows' coordinates
    if (thread < rows) {
#pragma unroll
      for (int j = 0; j < kVectors; ++j) w[thread].v[j] = vectors.v[j] != nullptr ? vectors.v[j][row + thread] : 0.0F;
    }
    __syncthreads();
    add_rows<T, kVectors, kWhole>(p, n, rows, count, w, scale + row * scales.blocks, scales.blocks, sums);
  }
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    if (vectors.v[j] == nullptr) continue;
    const DType type = table.type(1 + j, t);
    void* out = static_cast<char*>(table.data[1 + j][t]) + begin * (type == DType::f32 ? 4 : 2);
    store_columns<kWhole>(out, type, count, sums[j]);
  }
}

// Lists of the table: the columns of P, then the outputs.
template <class T, int kVectors>
__global__ void __launch_bounds__(kThreads)
    add_columns(const Table<1 + kVectors> __grid_constant__ table, Coordinates<kVectors> vectors, std::int64_t k,
                std::int64_t n, Scales scales) {
  __shared__ Weights<kVectors> w[kRows];
  constexpr int kParts = kChunk / kColumns<T>;
  const Chunk chunk = chunk_of(table, blockIdx.x / kParts);
  const int part = static_cast<int>(blockIdx.x % kParts) * kColumns<T>;
  const int count = chunk.count - part;
  if (count <= 0) return;
  bool whole = count >= kColumns<T> && chunk.aligned && n % kVector<T> == 0;
  if constexpr (kCodes<T>)  // a vector lies in one block
    whole = whole && scales.column(static_cast<const T*>(table.data[0][chunk.t])) % kVector<T> == 0;
  if (whole)
    add_block<T, kVectors, true>(table, vectors, k, n, chunk.t, chunk.begin + part, kColumns<T>, scales, w);
  else
    add_block<T, kVectors, false>(table, vectors, k, n, chunk.t, chunk.begin + part, count, scales, w);
}

// `count` <= kVectors of the vectors, from `first` on.
template <class T, int kVectors>
void add_vectors(const Context& context, const View& P, const Scales& scales, Tensors columns, Tensors vectors,
                 Tensors out, std::int64_t first, std::int64_t count, std::int64_t n) {
  static_assert(kRows <= kThreads);
  const std::int64_t tensors = columns.count;
  const Views nothing(static_cast<std::size_t>(tensors));
  Coordinates<kVectors> coordinates{};
  const auto list = [&](int j) {
    if (j >= count) return Tensors(nothing);
    coordinates.v[j] = static_cast<const float*>(vectors[first + j].data);
    return Tensors(out.data + (first + j) * tensors, tensors);
  };
  const auto run = [&](const Table<1 + kVectors>& table) {
    launch(context, add_columns<T, kVectors>, std::int64_t{table.blocks()} * (kChunk / kColumns<T>), kThreads, table,
           coordinates, P.rows, n, scales);
  };
  if constexpr (kVectors == 1)
    each_launch<2>({columns, list(0)}, run);
  else if constexpr (kVectors == 2)
    each_launch<3>({columns, list(0), list(1)}, run);
  else
    each_launch<5>({columns, list(0), list(1), list(2), list(3)}, run);
}

}  // namespace

void pca_back_project(const Context& context, const View& P, const float* scale, Tensors vectors, Tensors out,
                      std::int64_t tensors, std::int64_t n) {
  const OnDevice device(context);
  const Views columns = columns_of(P, {out.data, tensors});
  const Scales scales(P, scale, n);
  with_type(P.dtype, [&](auto element) {
    using T = decltype(element);
    for (std::int64_t j = 0; j < vectors.count; j += kTile) {
      const std::int64_t count = vectors.count - j < kTile ? vectors.count - j : kTile;
      if (count == 1)
        add_vectors<T, 1>(context, P, scales, columns, vectors, out, j, count, n);
      else if (count == 2)
        add_vectors<T, 2>(context, P, scales, columns, vectors, out, j, count, n);
      else
        add_vectors<T, kTile>(context, P, scales, columns, vectors, out, j, count, n);
    }
  });
}

}  // namespace boost_ext::cuda
