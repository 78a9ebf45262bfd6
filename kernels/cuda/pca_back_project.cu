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

// sums[j][e] += w[r].v[j] * p[r, mine(e)]: one addition a row, in the order of the rows.
template <class T, int kVectors, bool kWhole>
BOOST_EXT_DEVICE void add_rows(const T* p, std::int64_t n, int rows, int count, const Weights<kVectors>* w,
                               float (&sums)[kVectors][kVector<T>]) {
  constexpr int kCount = kVector<T>;
  [[maybe_unused]] constexpr int kTogether =
      32 / (kWhole && kVectors <= 2 ? 4 : kCount * (kWhole ? 1 : 2));  // rows in flight at once
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
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
#pragma unroll
      for (int e = 0; e < kCount; ++e) sums[j][e] += weights.v[j] * x[e];
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
                                std::int64_t n, int t, std::int64_t begin, int count, Weights<kVectors>* w) {
  const T* p = static_cast<const T*>(table.data[0][t]) + begin;
  const int thread = static_cast<int>(threadIdx.x);
  float sums[kVectors][kVector<T>] = {};
  for (std::int64_t row = 0; row < k; row += kRows, p += kRows * n) {
    const int rows = static_cast<int>(k - row < kRows ? k - row : kRows);
    __syncthreads();  // somebody may still read the last rows' coordinates
    if (thread < rows) {
#pragma unroll
      for (int j = 0; j < kVectors; ++j) w[thread].v[j] = vectors.v[j] != nullptr ? vectors.v[j][row + thread] : 0.0F;
    }
    __syncthreads();
    add_rows<T, kVectors, kWhole>(p, n, rows, count, w, sums);
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
__global__ void __launch_bounds__(kThreads) add_columns(const Table<1 + kVectors> __grid_constant__ table,
                                                        Coordinates<kVectors> vectors, std::int64_t k, std::int64_t n) {
  __shared__ Weights<kVectors> w[kRows];
  constexpr int kParts = kChunk / kColumns<T>;
  const Chunk chunk = chunk_of(table, blockIdx.x / kParts);
  const int part = static_cast<int>(blockIdx.x % kParts) * kColumns<T>;
  const int count = chunk.count - part;
  if (count <= 0) return;
  if (count >= kColumns<T> && chunk.aligned && n % kVector<T> == 0)
    add_block<T, kVectors, true>(table, vectors, k, n, chunk.t, chunk.begin + part, kColumns<T>, w);
  else
    add_block<T, kVectors, false>(table, vectors, k, n, chunk.t, chunk.begin + part, count, w);
}

// Of codes a thread has a pack of columns, which begins at a multiple of kPack columns of P, whatever tensors begin
// there: no block ends in a pack, and where rows have a multiple of kPack columns, it is aligned in all of them. A
// tensor's first pack may begin in the tensor before it: `lead` columns of it belong to that one.
constexpr int kCodeColumns = kThreads * kPack;  // of a block
constexpr int kBlocksOfColumns = kCodeColumns / static_cast<int>(kProjectionBlock) + 1;
constexpr int kRowsOfCodes = 32;  // whose coordinates, multiplied with their scales, lie in shared memory at a time

enum class Reads : std::uint8_t {
  aligned,  // to 8 bytes
  words,    // as in_words<4>() has it
  bytes,    // of which there may be fewer than a pack
};

template <Reads kReads> struct CodePack {
  unsigned word[kReads == Reads::words ? 3 : 2];

  BOOST_EXT_DEVICE void load(const Code* p, [[maybe_unused]] int bytes) {
    if constexpr (kReads == Reads::aligned) {
      const uint2 x = *reinterpret_cast<const uint2*>(p);
      word[0] = x.x, word[1] = x.y;
    } else if constexpr (kReads == Reads::words) {
      const auto* words = reinterpret_cast<const unsigned*>(word_of<4>(p));
#pragma unroll
      for (int w = 0; w < 3; ++w) word[w] = words[w];
    } else {
      word[0] = word[1] = 0;
#pragma unroll
      for (int e = 0; e < kPack; ++e) {
        if (e < bytes) word[e / 4] |= unsigned{static_cast<unsigned char>(p[e])} << (8 * (e % 4));
      }
    }
  }
  // The same p, or one that is a multiple of 4 bytes away.
  BOOST_EXT_DEVICE unsigned get(int w, [[maybe_unused]] const Code* p) const {
    if constexpr (kReads == Reads::words)
      return shifted(word[w], word[w + 1], static_cast<int>(reinterpret_cast<std::uintptr_t>(p) % 4));
    else
      return word[w];
  }
};

// The coordinates of rows, multiplied with the scales of a block's columns; zeros of rows that are not there.
template <int kVectors>
BOOST_EXT_DEVICE void load_weights(const Coordinates<kVectors>& vectors, std::int64_t row, std::int64_t k,
                                   const Scales& scales, std::int64_t block, Weights<kVectors> (*w)[kBlocksOfColumns]) {
  constexpr int kSide = 16;
  static_assert(kBlocksOfColumns <= kSide);
  const int side = static_cast<int>(threadIdx.x) % kSide;
  __syncthreads();  // somebody may still read the last rows' coordinates
#pragma unroll 1
  for (int r = static_cast<int>(threadIdx.x) / kSide; r < kRowsOfCodes; r += kThreads / kSide) {
    if (side >= kBlocksOfColumns) continue;
    const bool there = row + r < k && block + side < scales.blocks;
    const float scale = there ? scales.data[(row + r) * scales.blocks + block + side] : 0.0F;
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      w[r][side].v[j] = there && vectors.v[j] != nullptr ? vectors.v[j][row + r] * scale : 0.0F;
    }
  }
  __syncthreads();
}

// sums[j][e] = the sum of vectors.v[j][r] * scale * p[r, e] over the rows in their order: the coordinate is first
// multiplied with the scale, and product and addition are one operation. `column` is that of thread 0.
template <int kVectors, Reads kReads>
BOOST_EXT_DEVICE void add_packs(const Code* p, int bytes, const Coordinates<kVectors>& vectors, std::int64_t k,
                                std::int64_t n, const Scales& scales, std::int64_t column,
                                Weights<kVectors> (*w)[kBlocksOfColumns], Pack (&sums)[kVectors]) {
  constexpr int kTogether = 8;  // rows in flight at once
  static_assert(kRowsOfCodes % kTogether == 0);
  const std::int64_t block = column / kProjectionBlock;
  const auto mine = static_cast<int>((column + static_cast<int>(threadIdx.x) * kPack) / kProjectionBlock - block);
  const Weights<kVectors>* weights = nullptr;
#pragma unroll 1
  for (std::int64_t row = 0; row < k; row += kTogether) {
    CodePack<kReads> packs[kTogether] = {};
    const Code* from = p;
    if (row + kTogether <= k) {
#pragma unroll
      for (int r = 0; r < kTogether; ++r, from += n) packs[r].load(from, bytes);
    } else {
#pragma unroll
      for (int r = 0; r < kTogether; ++r, from += n) {
        if (row + r < k) packs[r].load(from, bytes);
      }
    }
    if (row % kRowsOfCodes == 0) {
      load_weights(vectors, row, k, scales, block, w);
      weights = w[0] + mine;
    }
#pragma unroll
    for (int r = 0; r < kTogether; ++r, p += n, weights += kBlocksOfColumns) {
      const unsigned words[] = {packs[r].get(0, p), packs[r].get(1, p)};
      const Weights<kVectors> of_row = *weights;
#pragma unroll
      for (int e = 0; e < kPack; ++e) {
        const float x = from_byte(words[e / 4], e % 4);
#pragma unroll
        for (int j = 0; j < kVectors; ++j) sums[j].v[e] = __fmaf_rn(of_row.v[j], x, sums[j].v[e]);
      }
    }
  }
}

// Of packs side by side, as each_pack() has them, but for the `lead` columns at the beginning.
template <int kVectors>
__global__ void __launch_bounds__(kThreads, kVectors <= 2 ? 4 : 3)
    add_columns_of_codes(const Table<1 + kVectors> __grid_constant__ table, Coordinates<kVectors> vectors,
                         std::int64_t k, std::int64_t n, Scales scales) {
  __shared__ Weights<kVectors> w[kRowsOfCodes][kBlocksOfColumns];
  constexpr int kParts = kChunk / kCodeColumns;
  const Chunk chunk = chunk_of(table, blockIdx.x / kParts);
  const int part = static_cast<int>(blockIdx.x % kParts) * kCodeColumns;
  const int count = chunk.count - part;
  if (count <= 0) return;
  const std::int64_t begin = chunk.begin + part;
  const int lead = begin == 0 ? table.group[chunk.t] : 0;
  const int thread = static_cast<int>(threadIdx.x), mine = thread * kPack, warp = mine - thread % kWarp * kPack;
  const Code* const p = static_cast<const Code*>(table.data[0][chunk.t]) + begin;
  const Code* const of_mine = mine < count ? p + mine : p;  // what is not the tensor's is not stored
  const std::int64_t column = scales.column(p);
  const int most = (count < kCodeColumns ? count : kCodeColumns) + kPack;
  Pack sums[kVectors] = {};
  if (reinterpret_cast<std::uintptr_t>(scales.P) % kPack == 0 && n % kPack == 0) {
    add_packs<kVectors, Reads::aligned>(of_mine, kPack, vectors, k, n, scales, column, w, sums);
  } else if (in_words<4>(p, p + (k - 1) * n + most, scales)) {
    add_packs<kVectors, Reads::words>(of_mine, kPack, vectors, k, n, scales, column, w, sums);
  } else {
    const int bytes = n - column - mine < kPack ? static_cast<int>(n - column - mine) : kPack;
    add_packs<kVectors, Reads::bytes>(of_mine, bytes, vectors, k, n, scales, column, w, sums);
  }
  const bool together = warp >= lead && warp + kWarp * kPack <= count;
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    if (vectors.v[j] == nullptr) continue;
    const DType type = table.type(1 + j, chunk.t);
    void* const out = table.data[1 + j][chunk.t];
    if (together) {
      store_pack(out, type, begin + mine, Count(kPack, true), false, sums[j]);
    } else {
#pragma unroll
      for (int e = 0; e < kPack; ++e) {
        if (mine + e >= lead && mine + e < count) store(out, type, begin + mine + e, sums[j].v[e]);
      }
    }
  }
}

// Moves the beginning of tensors to that of their first pack. Returns the columns before each of them.
std::vector<int> begin_with_packs(const View& P, Views& columns, Views& out) {
  const auto* const first = static_cast<const Code*>(P.data);
  std::vector<int> leads(columns.size());
  for (std::size_t t = 0; t < columns.size(); ++t) {
    if (columns[t].size == 0) continue;
    leads[t] = static_cast<int>((static_cast<const Code*>(columns[t].data) - first) % kPack);
    for (Views* list : {&columns, &out}) {
      for (std::size_t i = t; i < list->size(); i += columns.size()) {
        View& v = (*list)[i];
        v.data = static_cast<char*>(v.data) - leads[t] * item_size(v.dtype);
        v.size += leads[t];
      }
    }
  }
  return leads;
}

// `count` <= kVectors of the vectors, from `first` on. leads[t]: of a P of codes.
template <class T, int kVectors>
void add_vectors(const Context& context, const View& P, const Scales& scales, Tensors columns, Tensors vectors,
                 Tensors out, std::int64_t first, std::int64_t count, std::int64_t n, const std::vector<int>& leads) {
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
    if constexpr (kCodes<T>)
      launch(context, add_columns_of_codes<kVectors>, std::int64_t{table.blocks()} * (kChunk / kCodeColumns), kThreads,
             table, coordinates, P.rows, n, scales);
    else
      launch(context, add_columns<T, kVectors>, std::int64_t{table.blocks()} * (kChunk / kColumns<T>), kThreads, table,
             coordinates, P.rows, n);
  };
  const auto lead = [&](std::int64_t t) { return kCodes<T> ? leads[static_cast<std::size_t>(t)] : 0; };
  if constexpr (kVectors == 1)
    each_launch<2>({columns, list(0)}, run, lead);
  else if constexpr (kVectors == 2)
    each_launch<3>({columns, list(0), list(1)}, run, lead);
  else
    each_launch<5>({columns, list(0), list(1), list(2), list(3)}, run, lead);
}

}  // namespace

void pca_back_project(const Context& context, const View& P, const float* scale, Tensors vectors, Tensors out,
                      std::int64_t tensors, std::int64_t n) {
  const OnDevice device(context);
  Views columns = columns_of(P, {out.data, tensors}), outputs(out.data, out.data + out.count);
  const Scales scales(P, scale, n);
  with_type(P.dtype, [&](auto element) {
    using T = decltype(element);
    std::vector<int> leads;
    if constexpr (kCodes<T>) leads = begin_with_packs(P, columns, outputs);
    for (std::int64_t j = 0; j < vectors.count; j += kTile) {
      const std::int64_t count = vectors.count - j < kTile ? vectors.count - j : kTile;
      if (count == 1)
        add_vectors<T, 1>(context, P, scales, columns, vectors, outputs, j, count, n, leads);
      else if (count == 2)
        add_vectors<T, 2>(context, P, scales, columns, vectors, outputs, j, count, n, leads);
      else
        add_vectors<T, kTile>(context, P, scales, columns, vectors, outputs, j, count, n, leads);
    }
  });
}

}  // namespace boost_ext::cuda
