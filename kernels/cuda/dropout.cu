// See ops/dropout.h.
#include "lanes.cuh"
#include "multi_tensor.cuh"
#include "ops/dropout.h"
#include "ops/philox.h"

namespace boost_ext::cuda {
namespace {

__global__ void drop(const Table<2> __grid_constant__ table, DropoutShare share, DropoutKey key, std::int64_t shared,
                     const std::int32_t* draw) {
  const Chunk chunk = chunk_of(table, blockIdx.x);
  const Source x = source(table, 0, chunk);
  void* out = table.data[1][chunk.t];
  if (draw) key.draw = static_cast<std::uint32_t>(*draw);
  each_pack_of<1>(chunk, {x}, [&](std::int64_t i, Count n, auto pack) {
    Pack v = pack(0);
    std::uint32_t word[kPack];
    if (shared == 1) {
#pragma unroll
      for (int b = 0; b < kPack / 4; ++b) {
        std::uint32_t four[4];
        philox(key, static_cast<std::uint64_t>(i / 4 + b), four);
#pragma unroll
        for (int j = 0; j < 4; ++j) word[4 * b + j] = four[j];
      }
    } else {
      std::int64_t row = -1;
      std::uint32_t of_row = 0;
#pragma unroll
      for (int j = 0; j < kPack; ++j) {
        if ((i + j) / shared != row) {
          row = (i + j) / shared;
          std::uint32_t four[4];
          philox(key, static_cast<std::uint64_t>(row / 4), four);
          of_row = row % 4 < 2 ? (row % 4 == 0 ? four[0] : four[1]) : (row % 4 == 2 ? four[2] : four[3]);
        }
        word[j] = of_row;
      }
    }
#pragma unroll
    for (int j = 0; j < kPack; ++j) v.v[j] = share.any && word[j] <= share.most ? 0 : share.scale * v.v[j];
    store_pack(out, x.type, i, n, chunk.aligned, v);
  });
}

}  // namespace

void dropout(const Context& context, const View& x, const DropoutShare& share, const DropoutKey& key,
             std::int64_t shared, const View& out, const std::int32_t* draw) {
  const OnDevice device(context);
  each_launch<2>({Tensors(&x, 1), Tensors(&out, 1)}, [&](const Table<2>& table) {
    launch(context, drop, table.blocks(), kThreads, table, share, key, shared, draw);
  });
}

}  // namespace boost_ext::cuda
