// See ops/global_norm.h.
#include "multi_tensor.cuh"
#include "ops/global_norm.h"

namespace boost_ext::cuda {
namespace {

using Squared = Table<1, kOtherBytes, kLargeChunk>;

__global__ void __launch_bounds__(kThreads, 6) square_blocks(const Squared __grid_constant__ table, double* partial) {
  const Chunk chunk = chunk_of(table, blockIdx.x);
  double sum = 0;
  each_pack_of<1>(chunk, {source(table, 0, chunk)}, [&](std::int64_t, Count, auto pack) {
    const Pack x = pack(0);
#pragma unroll
    for (int j = 0; j < kPack; ++j) sum = add_product(sum, x.v[j], x.v[j]);
  });
  sum = sum_block(sum);
  if (threadIdx.x == 0) partial[table.block + blockIdx.x] = sum;
}

__global__ void root_of_sum(const double* squares, std::int64_t count, double* norm) {
  const double sum = sum_in_block(count, [&](std::int64_t i) { return squares[i]; });
  if (threadIdx.x == 0) *norm = sqrt(sum);
}

}  // namespace

void sums_of_squares(const Context& context, Tensors tensors, double* squares) {
  const OnDevice device(context);
  const Workspace<double> partial(context, blocks_of<kLargeChunk>(tensors));
  each_launch<1, kOtherBytes, kLargeChunk>({tensors}, [&](const Squared& table) {
    launch(context, square_blocks, table.blocks(), kThreads, table, partial.get());
    launch(context, add_blocks<Squared>, table.count, kThreads, table, partial.get(), squares);
  });
}

void global_norm(const Context& context, Tensors tensors, double* norm) {
  const OnDevice device(context);
  const Workspace<double> squares(context, tensors.count);
  sums_of_squares(context, tensors, squares.get());
  launch(context, root_of_sum, 1, kThreads, squares.get(), tensors.count, norm);
}

}  // namespace boost_ext::cuda
