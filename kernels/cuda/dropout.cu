// See ops/dropout.h.
#include "lanes.cuh"
#include "multi_tensor.cuh"
#include "ops/dropout.h"
#include "ops/philox.h"

namespace boost_ext::cuda {
namespace {

static_assert(kPack == kPhiloxHalves, "a pack takes one block");

constexpr int kAllButOneKilobyte = kParameterBytes - 1024;  // one tensor asks for a small table
using Dropped = Table<2, kAllButOneKilobyte, kLargeChunk>;

// Halves below `dropped` drop.
__global__ void __launch_bounds__(kThreads, 3)
    drop(const Dropped __grid_constant__ table, std::uint32_t dropped, float scale, const PhiloxRounds rounds,
         std::uint32_t draw, std::uint32_t stream, std::int64_t shared, const std::int32_t* draw_at) {
  const Chunk all = chunk_of(table, blockIdx.x);
  const Source x = source(table, 0, all);
  void* out = table.data[1][all.t];
  if (draw_at != nullptr) draw = static_cast<std::uint32_t>(*draw_at);
  const auto kept = [&](std::uint32_t half, float v) { return half < dropped ? 0.0F : scale * v; };
  if (shared == 1) {
    each_pack_of<1>(all, {x}, [&](std::int64_t i, Count n, auto pack) {
      Pack v = pack(0);
      std::uint32_t word[4];
      philox(rounds, draw, stream, static_cast<std::uint64_t>(i / kPack), word);
#pragma unroll
      for (int j = 0; j < kPack; ++j) v.v[j] = kept(half_of(word, j), v.v[j]);
      store_pack(out, pack.type, i, n, all.aligned, v);
    });
    return;
  }
#pragma unroll 1
  for (int at = 0; at < all.count; at += kChunk) {
    each_pack<false, 1>(all.part(at), [&](std::int64_t i, Count n) {
      Pack v = load_pack(x.data, x.type, i, n, all.aligned);
      std::int64_t row = -1;
      std::uint32_t of_row = 0;
#pragma unroll
      for (int j = 0; j < kPack; ++j) {
        if ((i + j) / shared != row) {
          row = (i + j) / shared;
          std::uint32_t four[4];
          philox(rounds, draw, stream, static_cast<std::uint64_t>(row / kPhiloxHalves), four);
          of_row = half_of(four, static_cast<int>(row % kPhiloxHalves));
        }
        v.v[j] = kept(of_row, v.v[j]);
      }
      store_pack(out, x.type, i, n, all.aligned, v);
    });
  }
}

}  // namespace

void dropout(const Context& context, const View& x, const DropoutShare& share, const DropoutKey& key,
             std::int64_t shared, const View& out, const std::int32_t* draw) {
  const OnDevice device(context);
  each_launch<2, kAllButOneKilobyte, kLargeChunk>({Tensors(&x, 1), Tensors(&out, 1)}, [&](const Dropped& table) {
    launch(context, drop, table.blocks(), kThreads, table, share.dropped, share.scale, PhiloxRounds(key.seed), key.draw,
           key.stream, shared, draw);
  });
}

}  // namespace boost_ext::cuda
