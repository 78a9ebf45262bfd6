// The positions of a list of rows, sorted by row; those of one row stay in their order. A stable radix sort: what a
// byte of the keys asks for is counted tile by tile, the counts are added up, and each tile moves what it has.
#pragma once

#include "multi_tensor.cuh"

namespace boost_ext::cuda {
namespace {

constexpr int kDigits = 256;
constexpr int kTileKeys = 4096;  // of a block
constexpr int kKeysEach = kTileKeys / kThreads;
constexpr int kSortWarps = kThreads / kWarp;
static_assert(kDigits == kThreads, "a thread a digit");

// What a pass reads and writes. The first one reads the list; keys of rows that there are not are `rows`.
struct SortPass {
  const std::int32_t* index;  // in the first pass
  const unsigned* key;        // and in the others
  const std::int32_t* position;
  unsigned* key_out;
  std::int32_t* position_out;
  unsigned* counts;  // of each tile and digit; then where these begin
  std::int64_t listed, tiles;
  unsigned rows;
  int shift;

  BOOST_EXT_DEVICE unsigned key_at(std::int64_t i) const {
    if (index == nullptr) return key[i];
    const auto row = static_cast<unsigned>(index[i]);  // a negative one is larger than all rows
    return row < rows ? row : rows;
  }
  BOOST_EXT_DEVICE unsigned digit(unsigned k) const { return (k >> shift) % kDigits; }
};

__global__ void count_digits(const SortPass p) {
  __shared__ unsigned counts[kDigits];
  counts[threadIdx.x] = 0;
  __syncthreads();
  const std::int64_t begin = std::int64_t{blockIdx.x} * kTileKeys;
#pragma unroll 4
  for (int k = 0; k < kKeysEach; ++k) {
    const std::int64_t i = begin + k * kThreads + threadIdx.x;
    if (i < p.listed) atomicAdd(&counts[p.digit(p.key_at(i))], 1u);  // sums of integers have no order
  }
  __syncthreads();
  p.counts[blockIdx.x * std::int64_t{kDigits} + threadIdx.x] = counts[threadIdx.x];
}

// One block: where each digit of each tile begins, which is behind all smaller digits and behind its own in the tiles
// before.
__global__ void add_counts(const SortPass p) {
  __shared__ unsigned sums[kDigits];
  const int thread = static_cast<int>(threadIdx.x);
  unsigned total = 0;
#pragma unroll 8
  for (std::int64_t tile = 0; tile < p.tiles; ++tile) total += p.counts[tile * kDigits + thread];
  sums[thread] = total;
  for (int distance = 1; distance < kDigits; distance *= 2) {
    __syncthreads();
    const unsigned before = thread >= distance ? sums[thread - distance] : 0;
    __syncthreads();
    sums[thread] += before;
  }
  unsigned next = sums[thread] - total;
#pragma unroll 8
  for (std::int64_t tile = 0; tile < p.tiles; ++tile) {
    const unsigned count = p.counts[tile * kDigits + thread];
    p.counts[tile * kDigits + thread] = next;
    next += count;
  }
}

// A warp has kTileKeys / kSortWarps keys side by side, 32 at a time.
__global__ void __launch_bounds__(kThreads) move_keys(const SortPass p) {
  __shared__ unsigned counts[kSortWarps][kDigits];
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int w = 0; w < kSortWarps; ++w) counts[w][threadIdx.x] = 0;
  const std::int64_t begin = std::int64_t{blockIdx.x} * kTileKeys + warp * (kTileKeys / kSortWarps) + lane;
  unsigned key[kKeysEach], rank[kKeysEach];
#pragma unroll
  for (int k = 0; k < kKeysEach; ++k) key[k] = begin + k * kWarp < p.listed ? p.key_at(begin + k * kWarp) : 0;
  __syncthreads();
#pragma unroll
  for (int k = 0; k < kKeysEach; ++k) {
    const bool there = begin + k * kWarp < p.listed;
    const unsigned digit = p.digit(key[k]);
    unsigned alike = __ballot_sync(kWholeWarp, there);  // lanes with this digit
#pragma unroll
    for (int bit = 0; bit < 8; ++bit) {
      const bool set = (digit >> bit) % 2 != 0;
      const unsigned lanes = __ballot_sync(kWholeWarp, set);
      alike &= set ? lanes : ~lanes;
    }
    const int before = __popc(alike & ((1u << lane) - 1));
    rank[k] = counts[warp][digit] + static_cast<unsigned>(before);
    __syncwarp();
    if (there && before == 0) counts[warp][digit] += static_cast<unsigned>(__popc(alike));
    __syncwarp();
  }
  __syncthreads();
  unsigned next = p.counts[blockIdx.x * std::int64_t{kDigits} + threadIdx.x];
  for (int w = 0; w < kSortWarps; ++w) {
    const unsigned count = counts[w][threadIdx.x];
    counts[w][threadIdx.x] = next;
    next += count;
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < kKeysEach; ++k) {
    const std::int64_t i = begin + k * kWarp;
    if (i >= p.listed) continue;
    const unsigned to = counts[warp][p.digit(key[k])] + rank[k];
    p.key_out[to] = key[k];
    p.position_out[to] = p.index != nullptr ? static_cast<std::int32_t>(i) : p.position[i];
  }
}

// The list by row, in memory of its own: keys and positions, and behind the last row those that there are not.
class SortedRows {
 public:
  SortedRows(const Context& context, const std::int32_t* index, std::int64_t listed, std::int64_t rows)
      : tiles_((listed + kTileKeys - 1) / kTileKeys),
        keys_(context, 2 * listed),
        positions_(context, 2 * listed),
        counts_(context, tiles_ * kDigits) {
    constexpr std::int64_t kAll = std::int64_t{1} << 31;  // that an index can name
    SortPass p{};
    p.index = index, p.listed = listed, p.tiles = tiles_, p.counts = counts_.get();
    p.rows = static_cast<unsigned>(rows < kAll ? rows : kAll);
    std::int64_t to = 0;
    for (p.shift = 0; p.shift < 32 && (p.rows >> p.shift) != 0; p.shift += 8) {
      p.key_out = keys_.get() + to, p.position_out = positions_.get() + to;
      launch(context, count_digits, tiles_, kThreads, p);
      launch(context, add_counts, 1, kThreads, p);
      launch(context, move_keys, tiles_, kThreads, p);
      p.index = nullptr, p.key = p.key_out, p.position = p.position_out;
      to = listed - to;
    }
    key = p.key, position = p.position, limit = p.rows;
  }
  const unsigned* key;
  const std::int32_t* position;
  std::int64_t limit;  // keys below are rows

 private:
  std::int64_t tiles_;
  Workspace<unsigned> keys_;
  Workspace<std::int32_t> positions_;
  Workspace<unsigned> counts_;
};

}  // namespace
}  // namespace boost_ext::cuda
