// See ops/pca_project.h.
#include "ops/pca_project.h"
#include "projection.cuh"

namespace boost_ext::cuda {
namespace {

constexpr int kWarps = kThreads / kWarp;
// Rows of P that a block works on: once for all of them it reads its chunk of the gradient. Fewer where they are long,
// so that the last blocks of a launch leave the device idle for less time.
template <class T> constexpr int kRows = sizeof(T) == 4 ? 16 : 32;
// Vectors of a row that are on their way at a time; of halves, whose arithmetic takes longer, more.
template <class T> constexpr int kTogether = sizeof(T) == 2 ? 8 : 4;
// Blocks of a multiprocessor, by their registers.
template <class T> constexpr int kResident = sizeof(T) == 1 ? 4 : sizeof(T) == 2 ? 5 : 6;

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
  constexpr int kStep = kWarp * kVector<T>, kUnrolled = kTogether<T>;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  float sums[kVector<T>] = {};
  int i = lane * kVector<T>;
  g += lane;
#pragma unroll kUnrolled
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

// A lane's vectors of a row of codes: aligned to 16 bytes; or read by single bytes; or, as in_words<8>() has it, in
// words of 8 bytes, which are shifted by as much in the whole row, so that the lanes of a warp go one way.
template <int kBytes> struct Codes {
  struct Words {
    uint2 a, b, c;
  };
  using Raw = std::conditional_t<kBytes == 8, Words, Vector>;
  const char* from;
  int shift;
  bool odd;
  BOOST_EXT_DEVICE explicit Codes(const Code* p) : from(word_of<kBytes>(p)) {
    const auto bytes = static_cast<int>(reinterpret_cast<const char*>(p) - from);
    shift = bytes % 4;
    odd = bytes >= 4;
  }
  BOOST_EXT_DEVICE Raw next(int step) {
    const char* const at = from;
    from += step;
    if constexpr (kBytes == 8) {
      const auto* words = reinterpret_cast<const uint2*>(at);
      return {words[0], words[1], words[2]};
    } else {
      return load_vector<kBytes>(at);
    }
  }
  BOOST_EXT_DEVICE Vector vector(const Raw& raw) const {
    if constexpr (kBytes == 8) {
      const auto [a, b, c] = raw;
      const unsigned word[] = {odd ? a.y : a.x, odd ? b.x : a.y, odd ? b.y : b.x, odd ? c.x : b.y, odd ? c.y : c.x};
      Vector x;
#pragma unroll
      for (int w = 0; w < 4; ++w) x.word[w] = shifted(word[w], word[w + 1], shift);
      return x;
    } else {
      return raw;
    }
  }
};

// Where blocks end in the middle of vectors, these have two sums. That over the elements of the next block would keep
// the whole warp waiting for two of its lanes in each round: instead, as many lanes as a chunk has such vectors make
// all of these sums before. Vector `which` is that in which block `which` of the chunk ends. Its elements of the
// gradient that belong to the next block lie here, behind zeros, and zeros in their place.
constexpr int kBlock = static_cast<int>(kProjectionBlock);
constexpr int kEnds = kChunk / kBlock;
struct Ends {
  float4 next[kVector<Code> / 4 * kWarp];
  float2 sums[kWarps][kWarp];  // over these elements in two rows of P, and before them their scales
};
// Of a chunk, or a part of it, whose first column is column `start` of a block.
BOOST_EXT_DEVICE int end_of(int which, int start) { return kBlock * (which + 1) - start; }

BOOST_EXT_DEVICE void part_vectors(float* g, Ends& ends, int start, int count) {
  static_assert(kEnds * kVector<Code> == kThreads && 2 * kEnds == kWarp);
  const int which = static_cast<int>(threadIdx.x) / kVector<Code>, e = static_cast<int>(threadIdx.x) % kVector<Code>;
  const int end = end_of(which, start), vector = end / kVector<Code> * kVector<Code>;
  if (vector + kVector<Code> <= count) {
    float& x = g[place<Code>(vector + e)];
    const bool next = e >= end - vector;
    reinterpret_cast<float*>(ends.next + e / 4 * kWarp + which)[e % 4] = next ? x : 0;
    if (next) x = 0;
  }
  __syncthreads();
}

// <p, g> over the whole vectors of codes of kAtOnce rows, `apart` elements and `blocks` scales from one to the other:
// the sum over a vector is multiplied with its scale; or over each part of it with its own, where a block ends in the
// vector. An element of the gradient is read once for all rows. `start` is the column in its block of p, which is that
// of element `first` of the chunk.
template <int kAtOnce, int kBytes>
BOOST_EXT_DEVICE void dot_codes(const Code* p, std::int64_t apart, const float4* g, int count, const float* scale,
                                std::int64_t blocks, int start, Ends& ends, int first, float (&sums)[2]) {
  constexpr int kCount = kVector<Code>, kStep = kWarp * kCount;
  [[maybe_unused]] constexpr int kUnrolled = kBytes == kCount ? 4 : 1;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int block = (start + lane * kCount) / kBlock;
  float2* const parted = ends.sums[threadIdx.x / kWarp];
  bool parts = false;
  if (kBytes < kCount && start % kCount != 0) {
    parts = end_of(block, start) - lane * kCount < kCount;
    const int which = lane % kEnds, row = lane / kEnds;
    const int i = end_of(which, start) / kCount * kCount;
    __syncwarp();  // somebody may still read those of the last rows
    if (row < kAtOnce && i + kCount <= count) {
      Codes<kBytes> codes(p + row * apart + i);
      const float sum = Factors(ends.next + first / kBlock + which).dot(codes.vector(codes.next(0)));
      parted[lane] = make_float2(scale[row * blocks + which + 1], sum);
    }
    __syncwarp();
  }
  g += lane;
  scale += block;
  const float2* before = parted + block;
  Codes<kBytes> codes[] = {Codes<kBytes>(p + lane * kCount), Codes<kBytes>(p + (kAtOnce - 1) * apart + lane * kCount)};
#pragma unroll kUnrolled
  for (int rest = count - (lane + 1) * kCount; rest >= 0; rest -= kStep) {
    typename Codes<kBytes>::Raw raw[kAtOnce];
    float by[kAtOnce];
#pragma unroll
    for (int r = 0; r < kAtOnce; ++r) raw[r] = codes[r].next(kStep), by[r] = scale[r * blocks];
    const Factors y(g);
#pragma unroll
    for (int r = 0; r < kAtOnce; ++r) {
      const float2 part = parts ? before[r * kEnds] : make_float2(0, 0);
      const float with = __fmaf_rn(part.x, part.y, sums[r]);
      sums[r] = __fmaf_rn(by[r], y.dot(codes[r].vector(raw[r])), parts ? with : sums[r]);
    }
    g += kStep / 4, scale += kStep / kBlock, before += kStep / kBlock;
  }
}

// What is no whole vector, in the order of a lane that has all of it.
BOOST_EXT_DEVICE void add_rest(const Code* p, std::int64_t apart, const float4* g, int count, const float* scale,
                               std::int64_t blocks, int start, float (&sums)[2]) {
  constexpr int kCount = kVector<Code>;
  const int begin = count / kCount * kCount;
  if (begin / kCount % kWarp != static_cast<int>(threadIdx.x) % kWarp) return;
  const auto* grads = reinterpret_cast<const float*>(g);
#pragma unroll 1
  for (int i = begin; i < count; ++i) {
    const float y = grads[place<Code>(i)];
    const float* const by = scale + (start + i) / kBlock;
    sums[0] += by[0] * (as_float(p[i]) * y);
    if (apart != 0) sums[1] += by[blocks] * (as_float(p[apart + i]) * y);
  }
}

template <class T> BOOST_EXT_DEVICE double dot_row(const T* p, const float4* g, int count) {
  const unsigned offset = static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(p) % kVectorBytes);
  return offset == 0                         ? dot<16>(p, g, count)
         : offset == 8                       ? dot<8>(p, g, count)
         : sizeof(T) == 4 || offset % 4 == 0 ? dot<4>(p, g, count)
                                             : dot<2>(p, g, count);
}

// For lane 0.
BOOST_EXT_DEVICE double sum_of_lanes(double sum) {
#pragma unroll
  for (int other = kWarp / 2; other > 0; other /= 2) sum += __shfl_down_sync(kWholeWarp, sum, other);
  return sum;
}

// The sums of one row or of two: half a warp adds up one, the other half the other one, in the order of sum_of_lanes().
BOOST_EXT_DEVICE void store_sums(const float (&sums)[2], double* place, std::int64_t apart, bool two) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const bool second = lane >= kWarp / 2;
  double sum = static_cast<double>(second ? sums[1] : sums[0]);
  sum += static_cast<double>(__shfl_xor_sync(kWholeWarp, second ? sums[0] : sums[1], kWarp / 2));
#pragma unroll
  for (int other = kWarp / 4; other > 0; other /= 2) sum += __shfl_down_sync(kWholeWarp, sum, other);
  if (lane == 0) *place = sum;
  if (two && lane == kWarp / 2) place[apart] = sum;
}

// Block b: kRows<T> rows and a chunk of columns; blocks beside one another share the chunk. `parts` warps share a row,
// and each leaves its sum in a place of its own. Of codes, kAligned: all tensors' columns in all rows begin at 16 bytes
// and at a multiple of a vector's columns. It is a kernel of its own, since both ways in one need more registers.
template <class T, bool kAligned>
__global__ void __launch_bounds__(kThreads, kResident<T>)
    dot_blocks(const Table<2> __grid_constant__ table, std::int64_t k, std::int64_t n, int tiles, int parts,
               double* partial, std::int64_t places, Scales scales) {
  __shared__ float4 chunk_of_grads[kChunk / 4];
  const std::int64_t block = blockIdx.x / tiles;
  const Chunk chunk = chunk_of(table, block);
  load_chunk<T>(table, chunk, reinterpret_cast<float*>(chunk_of_grads));
  const T* const columns = static_cast<const T*>(table.data[1][chunk.t]) + chunk.begin;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int part = warp % parts;
  const int first = part * (kChunk / parts);
  const float4* g = chunk_of_grads + first / 4;
  const int rest = chunk.count - first;
  const int count = rest < kChunk / parts ? rest : kChunk / parts;
  const int step = kWarps / parts, lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x % tiles) * kRows<T> + warp / parts;
  const int most = kRows<T> - warp / parts;
  int rows = k - row < most ? static_cast<int>(k - row) : most;  // from `row` on
  double* place = partial + row * places + (table.block + block) * parts + part;
  const T* p = columns + row * n + first;
  if constexpr (kCodes<T>) {
    __shared__ Ends ends;
    const std::int64_t column = scales.column(columns);
    const int start = static_cast<int>(column % kBlock);
    if (!kAligned && start % kVector<T> != 0) {
      part_vectors(reinterpret_cast<float*>(chunk_of_grads), ends, start, chunk.count);
    }
    const float* scale = scales.data + row * scales.blocks + (column + first) / kBlock;
    while (rows > 0) {
      const std::int64_t apart = step * n, blocks = step * scales.blocks;
      bool two = rows > step;
      float sums[2] = {};
      if constexpr (kAligned) {
        dot_codes<2, 16>(p, two ? apart : 0, g, count, scale, two ? blocks : 0, start, ends, first, sums);
      } else {
        two = two && in_words<8>(p, p + apart + count, scales);
        if (two)
          dot_codes<2, 8>(p, apart, g, count, scale, blocks, start, ends, first, sums);
        else if (in_words<8>(p, p + count, scales))
          dot_codes<1, 8>(p, apart, g, count, scale, blocks, start, ends, first, sums);
        else
          dot_codes<1, 1>(p, apart, g, count, scale, blocks, start, ends, first, sums);
      }
      add_rest(p, two ? apart : 0, g, count, scale, blocks, start, sums);
      store_sums(sums, place, step * places, two);
      const int done = two ? 2 : 1;
      rows -= done * step, place += done * step * places, p += done * apart, scale += done * blocks;
    }
  } else {
    for (; rows > 0; rows -= step, place += step * places, p += step * n) {
      const double sum = sum_of_lanes(dot_row(p, g, count));
      if (lane == 0) *place = sum;
    }
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
  const int parts = warps_a_row(k);
  const std::int64_t places = blocks_of(grads) * parts;
  const Workspace<double> partial(context, k * places);
  const Views columns = columns_of(P, grads);
  const auto is_aligned = [&](const Table<2>& table) {
    std::uintptr_t addresses = reinterpret_cast<std::uintptr_t>(P.data) | static_cast<std::uintptr_t>(n);
    for (int t = 0; t < table.count; ++t) addresses |= reinterpret_cast<std::uintptr_t>(table.data[1][t]);
    return addresses % kVectorBytes == 0;
  };
  each_launch<2>({grads, columns}, [&](const Table<2>& table) {
    with_type(P.dtype, [&](auto element) {
      using T = decltype(element);
      const std::int64_t tiles = (k + kRows<T> - 1) / kRows<T>;
      const auto kernel = kCodes<T> && is_aligned(table) ? dot_blocks<T, kCodes<T>> : dot_blocks<T, false>;
      launch(context, kernel, table.blocks() * tiles, kThreads, table, k, n, static_cast<int>(tiles), parts,
             partial.get(), places, Scales(P, scale, n));
    });
  });
  launch(context, add_places, k, kThreads, partial.get(), places, out);
}

}  // namespace boost_ext::cuda
