// See ops/unscale_and_check.h.
#include "multi_tensor.cuh"
#include "ops/unscale_and_check.h"

namespace boost_ext::cuda {
namespace {

constexpr long long kNowhere = 0x7fffffffffffffffll;

struct Seen {
  long long inf, nan, first;
  // Bits of the largest finite magnitude. As wide as the others: a copy of padding, which nobody writes, is reported
  // by the emulator's watch over shared memory.
  unsigned long long largest;
};

BOOST_EXT_DEVICE Seen both(const Seen& a, const Seen& b) {
  return {a.inf + b.inf, a.nan + b.nan, a.first < b.first ? a.first : b.first,
          a.largest > b.largest ? a.largest : b.largest};
}

// Inf and nan are the largest bits there are: one maximum finds them, and what they are is counted where there are
// some.
template <bool kReport>
__global__ void __launch_bounds__(kThreads, kReport ? 3 : 4)
    scale_blocks(const Table<1> __grid_constant__ table, Scalar inv_scale, Seen* partial, float* found) {
  const Chunk chunk = chunk_of(table, blockIdx.x);
  void* grads = table.data[0][chunk.t];
  const float factor = inv_scale.get();
  Seen seen{0, 0, kNowhere, 0};
  each_pack_of<1>(chunk, {source(table, 0, chunk)}, [&](std::int64_t i, Count n, auto pack) {
    Pack g = pack(0);
    unsigned largest = 0;
#pragma unroll
    for (int j = 0; j < kPack; ++j) {
      if (factor != 1) g.v[j] = rounded(pack.type, factor * g.v[j]);
      const unsigned bits = __float_as_uint(g.v[j]) & 0x7fffffffu;
      largest = bits > largest ? bits : largest;
    }
    if (factor != 1) store_pack(grads, pack.type, i, n, chunk.aligned, g);
    if (largest < kInfBits) {
      seen.largest = largest > seen.largest ? largest : seen.largest;
      return;
    }
    for (int j = 0; j < n; ++j) {
      const unsigned bits = __float_as_uint(g.v[j]) & 0x7fffffffu;
      if (bits < kInfBits) {
        seen.largest = bits > seen.largest ? bits : seen.largest;
        continue;
      }
      seen.inf += bits == kInfBits;
      seen.nan += bits > kInfBits;
      if (i + j < seen.first) seen.first = i + j;
    }
  });
  if (!kReport) {
    if (seen.first != kNowhere) *found = 1;  // whoever writes it, writes the same
    return;
  }
  seen = reduce_block(seen, both);
  if (threadIdx.x == 0) partial[table.block + blockIdx.x] = seen;
}

// One block a tensor.
__global__ void write_rows(const Table<1> __grid_constant__ table, const Seen* partial, double* report, float* found) {
  const int t = static_cast<int>(blockIdx.x);
  const Seen seen = combine_partials(table, t, partial, Seen{0, 0, kNowhere, 0}, both);
  if (threadIdx.x != 0) return;
  double* row = report + 4 * (table.tensor + t);
  const bool any = seen.first != kNowhere;
  row[0] = static_cast<double>(seen.inf);
  row[1] = static_cast<double>(seen.nan);
  row[2] = any ? static_cast<double>(seen.first) : -1;
  row[3] = static_cast<double>(__uint_as_float(static_cast<unsigned>(seen.largest)));
  if (any) *found = 1;
}

}  // namespace

void unscale_and_check(const Context& context, Tensors grads, const Number& inv_scale, double* report, float* found) {
  const OnDevice device(context);
  check(cudaMemsetAsync(found, 0, sizeof *found, stream_of(context)), "unscale_and_check");
  const Scalar factor(inv_scale);
  const Workspace<Seen> partial(context, report != nullptr ? blocks_of(grads) : 0);
  each_launch<1>({grads}, [&](const Table<1>& table) {
    if (report == nullptr) {
      launch(context, scale_blocks<false>, table.blocks(), kThreads, table, factor, partial.get(), found);
      return;
    }
    launch(context, scale_blocks<true>, table.blocks(), kThreads, table, factor, partial.get(), found);
    launch(context, write_rows, table.count, kThreads, table, partial.get(), report, found);
  });
}

}  // namespace boost_ext::cuda
