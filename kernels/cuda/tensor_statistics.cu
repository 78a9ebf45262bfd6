// See ops/tensor_statistics.h.
#include "multi_tensor.cuh"
#include "ops/tensor_statistics.h"

namespace boost_ext::cuda {
namespace {

using Read = Table<1, kOtherBytes, kLargeChunk>;
constexpr long long kNowhere = 0x7fffffffffffffffll;
// Bits of 2^-40 and 2^62. Where the largest of a pack is between, the squares of bfloat16 neither overflow in float32,
// nor do those vanish that count.
constexpr unsigned kTiny = 0x2b800000u, kHuge = 0x5e800000u;

struct Seen {
  long long inf, nan, first, zeros;
  // Bits of the largest finite magnitude. As wide as the others: nobody writes padding, and the emulator's watch over
  // shared memory reports a copy of it.
  unsigned long long largest;
  double squares;
};

BOOST_EXT_DEVICE Seen nothing() { return {0, 0, kNowhere, 0, 0, 0}; }
BOOST_EXT_DEVICE Seen both(const Seen& a, const Seen& b) {
  return {a.inf + b.inf,
          a.nan + b.nan,
          a.first < b.first ? a.first : b.first,
          a.zeros + b.zeros,
          a.largest > b.largest ? a.largest : b.largest,
          a.squares + b.squares};
}

__global__ void __launch_bounds__(kThreads, 4) look_at_blocks(const Read __grid_constant__ table, Seen* partial) {
  const Chunk chunk = chunk_of(table, blockIdx.x);
  Seen seen = nothing();
  int zeros = 0;
  each_pack_of<1>(chunk, {source(table, 0, chunk)}, [&](std::int64_t i, Count n, auto pack) {
    const Pack x = pack(0);
    unsigned largest = 0;
#pragma unroll
    for (int j = 0; j < kPack; ++j) {
      const unsigned bits = __float_as_uint(x.v[j]) & 0x7fffffffu;
      largest = bits > largest ? bits : largest;
      zeros += bits == 0 && j < n;
    }
    const bool wide = pack.type == DType::f32;
    if (largest == 0 || (wide ? largest < kInfBits : largest - kTiny < kHuge - kTiny)) {
      seen.largest = largest > seen.largest ? largest : seen.largest;
      seen.squares =
          wide ? add_product(seen.squares, x, x) : seen.squares + static_cast<double>(product_in_floats(x, x));
      return;
    }
    for (int j = 0; j < n; ++j) {
      const unsigned bits = __float_as_uint(x.v[j]) & 0x7fffffffu;
      if (bits < kInfBits) {
        seen.largest = bits > seen.largest ? bits : seen.largest;
        seen.squares = add_product(seen.squares, x.v[j], x.v[j]);
        continue;
      }
      seen.inf += bits == kInfBits;
      seen.nan += bits > kInfBits;
      if (i + j < seen.first) seen.first = i + j;
    }
  });
  seen.zeros = zeros;
  seen = reduce_block(seen, both);
  if (threadIdx.x == 0) partial[table.block + blockIdx.x] = seen;
}

// One block a tensor.
__global__ void write_rows(const Read __grid_constant__ table, double scale, const float* on_device,
                           const Seen* partial, double* rows) {
  const int t = static_cast<int>(blockIdx.x);
  const Seen seen = combine_partials(table, t, partial, nothing(), both);
  if (threadIdx.x != 0) return;
  const double divisor = on_device != nullptr ? static_cast<double>(*on_device) : scale;
  double* row = rows + kStatistics * (table.tensor + t);
  row[0] = static_cast<double>(seen.inf);
  row[1] = static_cast<double>(seen.nan);
  row[2] = seen.first == kNowhere ? -1 : static_cast<double>(seen.first);
  row[3] = static_cast<double>(__uint_as_float(static_cast<unsigned>(seen.largest))) / divisor;
  row[4] = static_cast<double>(seen.zeros);
  row[5] = seen.squares / divisor / divisor;
}

}  // namespace

void tensor_statistics(const Context& context, Tensors tensors, const Number& scale, double* rows) {
  const OnDevice device(context);
  const auto* on_device = scale.on_device() ? static_cast<const float*>(scale.at.data) : nullptr;
  const Workspace<Seen> partial(context, blocks_of<kLargeChunk>(tensors));
  each_launch<1, kOtherBytes, kLargeChunk>({tensors}, [&](const Read& table) {
    launch(context, look_at_blocks, table.blocks(), kThreads, table, partial.get());
    launch(context, write_rows, table.count, kThreads, table, scale.value, on_device, partial.get(), rows);
  });
}

}  // namespace boost_ext::cuda
