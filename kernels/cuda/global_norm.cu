// See ops/global_norm.h.
#include "multi_tensor.cuh"
#include "ops/global_norm.h"

namespace boost_ext::cuda {
namespace {

using Squared = Table<1, kOtherBytes, kLargeChunk>;

__global__ void __launch_bounds__(kThreads, 6) square_blocks(const Squared __grid_constant__ table, double* partial) {
  const Chunk chunk = chunk_of(table, blockIdx.x);
  const Source from = source(table, 0, chunk);
  const auto squares = [&](auto wide) {
    double sum = 0;
    each_pack_of<1, !wide.value>(chunk, {from}, [&](std::int64_t, Count, auto pack) {
      const Pack x = pack(0);
      if (wide.value || pack.type == DType::f32)
        sum = add_product(sum, x, x);
      else
        sum += static_cast<double>(product_in_floats(x, x));
    });
    return sum;
  };
  double sum = squares(std::false_type());
  if (__any_sync(kWholeWarp, from.type != DType::f32 && !exact_in_floats(sum))) sum = squares(std::true_type());
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
