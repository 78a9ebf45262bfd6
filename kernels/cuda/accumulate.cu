// See ops/accumulate.h.
#include "multi_tensor.cuh"
#include "ops/accumulate.h"

namespace boost_ext::cuda {
namespace {

template <bool kFirst> __global__ void accumulate_blocks(const Table<2> __grid_constant__ table, float factor) {
  const Chunk chunk = chunk_of(table, blockIdx.x);
  void* sums = table.data[0][chunk.t];
  const Source grads = source(table, 1, chunk);
  const auto put = [&](std::int64_t i, Count n, const Pack& a) {
    store_pack(sums, DType::f32, i, n, chunk.aligned, a);
  };
  if (kFirst) {
    each_pack_of<1>(chunk, {grads}, [&](std::int64_t i, Count n, auto pack) {
      Pack a = pack(0);
#pragma unroll
      for (int j = 0; j < kPack; ++j) a.v[j] = factor * a.v[j];
      put(i, n, a);
    });
    return;
  }
  each_pack_of<2>(chunk, {{sums, DType::f32}, grads}, [&](std::int64_t i, Count n, auto pack) {
    Pack a = pack(0);
    const Pack g = pack(1);
#pragma unroll
    for (int j = 0; j < kPack; ++j) a.v[j] = a.v[j] + factor * g.v[j];
    put(i, n, a);
  });
}

}  // namespace

void accumulate(const Context& context, Tensors accumulators, Tensors grads, float factor, bool first) {
  const OnDevice device(context);
  each_launch<2>({accumulators, grads}, [&](const Table<2>& table) {
    launch(context, first ? accumulate_blocks<true> : accumulate_blocks<false>, table.blocks(), kThreads, table,
           factor);
  });
}

}  // namespace boost_ext::cuda
