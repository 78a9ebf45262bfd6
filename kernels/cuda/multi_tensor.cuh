// Lists of hundreds of tensors in one launch. The table of where they lie is an argument of the kernel, by value:
// nothing is copied to the device before, and a captured graph owns it.
#pragma once

#include "packs.cuh"

namespace boost_ext::cuda {

constexpr int kChunk = 4096;             // elements of a block: two packs a thread
constexpr int kLargeChunk = 4 * kChunk;  // of one whose beginning and end cost as much as two packs
constexpr int kParameterBytes = 32764;   // of a launch, from CUDA 12.1 and compute capability 7.0
constexpr int kOtherBytes = 764;         // of them for what else a kernel takes, unless it says how much that is
constexpr int kHints = 64;

// Some tensors of kLists lists of tensors, which share their sizes. Block b of the launch works on a chunk of tensor t,
// of kElements elements, where first[t] <= b < first[t + 1].
template <int kLists, int kOthers = kOtherBytes, int kElements = kChunk> struct Table {
  static constexpr int kBytes = kLists * 9 + 14;
  static constexpr int kCapacity = (kParameterBytes - kOthers - 208) / kBytes / 8 * 8;
  std::int64_t block;   // of the whole call: how many blocks there were before
  std::int32_t tensor;  // of the whole call: index of tensor 0
  std::int32_t count;
  std::int32_t shift;              // of a block's number, to its hint
  std::uint16_t hint[kHints + 2];  // [h]: the tensor of block h << shift, or the last one
  std::int64_t size[kCapacity];
  void* data[kLists][kCapacity];
  std::int32_t first[kCapacity + 2];
  std::uint8_t dtype[kLists][kCapacity];
  std::uint8_t aligned[kCapacity];  // all of its lists, to 16 bytes
  std::uint8_t group[kCapacity];    // whatever the op tells apart

  __host__ __device__ std::int32_t blocks() const { return first[count]; }
  void give_hints() {
    static_assert(kCapacity <= 65535);
    for (shift = 0; blocks() >> shift >= kHints;) ++shift;
    std::int32_t t = 0;
    for (std::int64_t h = 0; h <= kHints; ++h) {
      while (t + 1 < count && first[t + 1] <= h << shift) ++t;
      hint[h] = static_cast<std::uint16_t>(t);
    }
  }
  __host__ __device__ DType type(int list, int t) const { return static_cast<DType>(dtype[list][t]); }
};

// What a block works on: `count` elements of tensor t, from `begin` on.
struct Chunk {
  int t;
  std::int64_t begin;
  int count;
  bool aligned;

  // Of a large one, the elements from `at` on that are worked on at a time.
  BOOST_EXT_DEVICE Chunk part(int at) const {
    return {t, begin + at, count - at < kChunk ? count - at : kChunk, aligned};
  }
};

// t where first[t] <= block < first[t + 1], which lies between low and high: first[low] <= block < first[high].
BOOST_EXT_DEVICE int tensor_of(const std::int32_t* first, int low, int high, std::int64_t block) {
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (first[middle] <= block)
      low = middle;
    else
      high = middle;
  }
  return low;
}

template <int kLists, int kOthers, int kElements>
BOOST_EXT_DEVICE Chunk chunk_of(const Table<kLists, kOthers, kElements>& table, std::int64_t block) {
  const std::int64_t hint = block >> table.shift;
  const int low = tensor_of(table.first, table.hint[hint], table.hint[hint + 1] + 1, block);
  const std::int64_t begin = (block - table.first[low]) * kElements;
  const std::int64_t rest = table.size[low] - begin;
  return {low, begin, static_cast<int>(rest < kElements ? rest : kElements), table.aligned[low] != 0};
}

// body(i, n) for the packs of this thread: n <= kPack elements from i on. With kAll also where n is 0.
constexpr int kRounds = kChunk / (kThreads * kPack);
template <bool kAll = false, int kUnrolled = kRounds, class Body>
BOOST_EXT_DEVICE void each_pack(const Chunk& chunk, Body body) {
#pragma unroll kUnrolled
  for (int round = 0; round < kRounds; ++round) {
    const int at = (round * kThreads + static_cast<int>(threadIdx.x)) * kPack;
    const Count n = count_of(chunk.count - (at - static_cast<int>(threadIdx.x) % kWarp * kPack));
    if (kAll || n > 0) body(chunk.begin + at, n);
  }
}

// Lists of a chunk that a thread reads.
struct Source {
  const void* data;
  DType type;
};
template <int kLists, int kOthers, int kElements>
BOOST_EXT_DEVICE Source source(const Table<kLists, kOthers, kElements>& table, int list, const Chunk& chunk) {
  return {table.data[list][chunk.t], table.type(list, chunk.t)};
}

// The packs of some lists at the same place, and how the last list is stored: a constant where a chunk is whole.
template <class Get, class Type> struct PacksOf {
  const Get& get;
  Type type;
  BOOST_EXT_DEVICE Pack operator()(int list) const { return get(list); }
};

// Those of a whole chunk are on their way before the first of them is asked for: both rounds at once, or of many lists
// one.
template <DType kLast, int kLists, class Body>
BOOST_EXT_DEVICE void each_whole_pack(std::int64_t begin, const Source (&from)[kLists], Body& body) {
  constexpr int kAtOnce = kLists <= 2 ? kRounds : 1;
#pragma unroll
  for (int first = 0; first < kRounds; first += kAtOnce) {
    const auto place = [&](int round) {
      return begin + ((first + round) * kThreads + static_cast<int>(threadIdx.x)) * kPack;
    };
    Coming coming[kAtOnce][kLists];
#pragma unroll
    for (int round = 0; round < kAtOnce; ++round) {
#pragma unroll
      for (int list = 0; list < kLists; ++list) {
        const DType type = list == kLists - 1 ? kLast : from[list].type;
        coming[round][list] = coming_aligned(pack_at(from[list].data, type, place(round)), type, words_of(type));
      }
    }
#pragma unroll
    for (int round = 0; round < kAtOnce; ++round) {
      const auto get = [&](int list) { return coming[round][list].get(); };
      body(place(round), Count(kPack, true, true), PacksOf<decltype(get), TypeOf<kLast>>{get, {}});
    }
  }
}

// body(i, n, pack) for the packs of this thread; pack(list) is that of a list, and pack.type the type of the last list.
// What is whole is in a loop of its own for each type, so that it begins without the addresses of the rest; not where
// that is not kFast, which is less code.
template <int kLists, bool kFast = true, class Body>
BOOST_EXT_DEVICE void each_pack_of(const Chunk& chunk, const Source (&from)[kLists], Body body) {
  const DType last = from[kLists - 1].type;
  const int whole = kFast && chunk.aligned ? chunk.count / kChunk * kChunk : 0;
  if (last == DType::f32) {
#pragma unroll 1
    for (int at = 0; at < whole; at += kChunk) each_whole_pack<DType::f32>(chunk.begin + at, from, body);
  } else if (last == DType::f16) {
#pragma unroll 1
    for (int at = 0; at < whole; at += kChunk) each_whole_pack<DType::f16>(chunk.begin + at, from, body);
  } else if (last == DType::bf16) {
#pragma unroll 1
    for (int at = 0; at < whole; at += kChunk) each_whole_pack<DType::bf16>(chunk.begin + at, from, body);
  }
#pragma unroll 1
  for (int at = whole; at < chunk.count; at += kChunk) {
    each_pack<false, 1>(chunk.part(at), [&](std::int64_t i, Count n) {
      const auto get = [&](int list) { return load_pack(from[list].data, from[list].type, i, n, chunk.aligned); };
      body(i, n, PacksOf<decltype(get), DType>{get, last});
    });
  }
}

template <int kElements = kChunk> std::int64_t blocks_of(std::int64_t size) {
  return (size + kElements - 1) / kElements;
}
template <int kElements = kChunk> std::int64_t blocks_of(Tensors tensors) {
  std::int64_t blocks = 0;
  for (std::int64_t t = 0; t < tensors.count; ++t) blocks += blocks_of<kElements>(tensors[t].size);
  return blocks;
}

struct NoGroups {
  int operator()(std::int64_t) const { return 0; }
};

// launch_one(table) for all tensors of the lists, as many at a time as an argument holds. A view without data has none
// in its list. group(tensor) is put into the table; where it is negative, the tensor has to wait for the next launch.
template <int kLists, int kOthers = kOtherBytes, int kElements = kChunk, class LaunchOne, class Group = NoGroups>
void each_launch(const Tensors (&lists)[kLists], LaunchOne launch_one, Group group = {}) {
  using Part = Table<kLists, kOthers, kElements>;
  static_assert(sizeof(Part) <= kParameterBytes - kOthers);
  const std::int64_t count = lists[0].count;
  Part table;
  table.block = 0;
  for (std::int64_t next = 0; next < count;) {
    table.tensor = static_cast<std::int32_t>(next);
    table.count = 0;
    table.first[0] = 0;
    while (next < count && table.count < Part::kCapacity) {
      const int t = table.count;
      const std::int64_t size = lists[0][next].size;
      const std::int64_t blocks = blocks_of<kElements>(size);
      if (table.first[t] + blocks > kMostBlocks) break;
      const int of_group = group(next);
      if (of_group < 0) break;
      std::uintptr_t addresses = 0;
      for (int list = 0; list < kLists; ++list) {
        const View& v = lists[list][next];
        table.data[list][t] = v.data;
        table.dtype[list][t] = static_cast<std::uint8_t>(v.dtype);
        addresses |= reinterpret_cast<std::uintptr_t>(v.data);
      }
      table.size[t] = size;
      table.aligned[t] = addresses % 16 == 0;
      table.group[t] = static_cast<std::uint8_t>(of_group);
      table.first[t + 1] = static_cast<std::int32_t>(table.first[t] + blocks);
      ++table.count;
      ++next;
    }
    table.give_hints();
    launch_one(static_cast<const Part&>(table));
    table.block += table.blocks();
  }
}

// What the blocks of tensor t left in `partial`, combined in an order of its own, for thread 0; `none` if there are
// none.
template <int kLists, int kOthers, int kElements, class T, class Combine>
BOOST_EXT_DEVICE T combine_partials(const Table<kLists, kOthers, kElements>& table, int t, const T* partial, T none,
                                    Combine combine) {
  for (std::int64_t b = table.first[t] + threadIdx.x; b < table.first[t + 1]; b += kThreads) {
    none = combine(none, partial[table.block + b]);
  }
  return reduce_block(none, combine);
}

// out[t] = the sum of what the blocks of tensor t left in `partial`, in their order: one block a tensor.
template <class Table>
__global__ void add_blocks(const Table __grid_constant__ table, const double* partial, double* out) {
  const int t = static_cast<int>(blockIdx.x);
  const double sum = combine_partials(table, t, partial, 0.0, [](double a, double b) { return a + b; });
  if (threadIdx.x == 0) out[table.tensor + t] = sum;
}

}  // namespace boost_ext::cuda
