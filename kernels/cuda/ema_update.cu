// See ops/ema_update.h.
#include "multi_tensor.cuh"
#include "ops/ema_update.h"

namespace boost_ext::cuda {
namespace {

__global__ void ema_update_blocks(const Table<2> __grid_constant__ table, float rate) {
  const Chunk chunk = chunk_of(table, blockIdx.x);
  void* averages = table.data[0][chunk.t];
  each_pack_of<2>(chunk, {{averages, DType::f32}, source(table, 1, chunk)}, [&](std::int64_t i, Count n, auto pack) {
    Pack a = pack(0);
    const Pack w = pack(1);
#pragma unroll
    for (int j = 0; j < kPack; ++j) a.v[j] = a.v[j] + rate * (w.v[j] - a.v[j]);
    store_pack(averages, DType::f32, i, n, chunk.aligned, a);
  });
}

}  // namespace

void ema_update(const Context& context, Tensors averages, Tensors weights, float rate) {
  const OnDevice device(context);
  each_launch<2>({averages, weights}, [&](const Table<2>& table) {
    launch(context, ema_update_blocks, table.blocks(), kThreads, table, rate);
  });
}

}  // namespace boost_ext::cuda
