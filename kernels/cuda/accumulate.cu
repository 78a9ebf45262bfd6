// See ops/accumulate.h.
#include "multi_tensor.cuh"
#include "ops/accumulate.h"

namespace boost_ext::cuda {
namespace {

__global__ void accumulate_blocks(const __grid_constant__ Table<2> table, float factor, bool first) {
  const Chunk chunk = chunk_of(table, blockIdx.x);
  void* sums = table.data[0][chunk.t];
  const void* grads = table.data[1][chunk.t];
  const DType type = table.type(1, chunk.t);
  each_pack(chunk, [&](std::int64_t i, int n) {
    const Pack g = load_pack(grads, type, i, n, chunk.aligned);
    Pack a;
    if (!first) a = load_pack(sums, DType::f32, i, n, chunk.aligned);
#pragma unroll
    for (int j = 0; j < kPack; ++j) a.v[j] = first ? factor * g.v[j] : a.v[j] + factor * g.v[j];
    store_pack(sums, DType::f32, i, n, chunk.aligned, a);
  });
}

}  // namespace

void accumulate(const Context& context, Tensors accumulators, Tensors grads, float factor, bool first) {
  const OnDevice device(context);
  each_launch<2>({accumulators, grads}, [&](const Table<2>& table) {
    launch(context, accumulate_blocks, table.blocks(), kThreads, table, factor, first);
  });
}

}  // namespace boost_ext::cuda
