// See ops/adasum.h.
#include "multi_tensor.cuh"
#include "ops/adasum.h"

namespace boost_ext::cuda {
namespace {

struct Dots {
  double ab, aa, bb;
};

BOOST_EXT_DEVICE Dots both(const Dots& x, const Dots& y) { return {x.ab + y.ab, x.aa + y.aa, x.bb + y.bb}; }

__global__ void dot_blocks(const Table<2> __grid_constant__ table, Dots* partial) {
  const Chunk chunk = chunk_of(table, blockIdx.x);
  const Source b = source(table, 1, chunk);
  const auto products = [&](auto wide) {
    Dots dots{0, 0, 0};
    each_pack_of<2, !wide.value>(chunk, {{table.data[0][chunk.t], b.type}, b}, [&](std::int64_t, Count, auto pack) {
      const Pack x = pack(0), y = pack(1);
      if (wide.value || pack.type == DType::f32)
        dots = {add_product(dots.ab, x, y), add_product(dots.aa, x, x), add_product(dots.bb, y, y)};
      else
        dots = both(dots, {static_cast<double>(product_in_floats(x, y)), static_cast<double>(product_in_floats(x, x)),
                           static_cast<double>(product_in_floats(y, y))});
    });
    return dots;
  };
  Dots dots = products(std::false_type());
  const bool exact = b.type == DType::f32 || (exact_in_floats(dots.aa) && exact_in_floats(dots.bb));
  if (__any_sync(kWholeWarp, !exact)) dots = products(std::true_type());
  dots = reduce_block(dots, both);
  if (threadIdx.x == 0) partial[table.block + blockIdx.x] = dots;
}

// One block a tensor.
__global__ void add_dots(const Table<2> __grid_constant__ table, const Dots* partial, double* out) {
  const int t = static_cast<int>(blockIdx.x);
  const Dots dots = combine_partials(table, t, partial, Dots{0, 0, 0}, both);
  if (threadIdx.x != 0) return;
  double* row = out + 3 * static_cast<std::int64_t>(table.tensor + t);
  row[0] = dots.ab;
  row[1] = dots.aa;
  row[2] = dots.bb;
}

BOOST_EXT_DEVICE float coefficient(double ab, double norm2) {
  return norm2 == 0 ? 1.0F : static_cast<float>(1 - ab / (2 * norm2));
}

__global__ void __launch_bounds__(kThreads, 3)
    combine_blocks(const Table<3> __grid_constant__ table, const double* dots) {
  // From the end, of which most is still in the cache when the dots were taken just before.
  const Chunk chunk = chunk_of(table, table.blocks() - 1 - static_cast<std::int64_t>(blockIdx.x));
  __shared__ float coefficients[2];
  if (threadIdx.x < 2) {
    const double* row = dots + 3 * static_cast<std::int64_t>(table.tensor + chunk.t);
    coefficients[threadIdx.x] = coefficient(row[0], row[1 + threadIdx.x]);
  }
  __syncthreads();
  const float ca = coefficients[0], cb = coefficients[1];
  const Source b = source(table, 1, chunk);  // a and out are of its type
  each_pack_of<2>(chunk, {{table.data[0][chunk.t], b.type}, b}, [&](std::int64_t i, Count n, auto pack) {
    Pack x = pack(0);
    const Pack y = pack(1);
#pragma unroll
    for (int j = 0; j < kPack; ++j) x.v[j] = ca * x.v[j] + cb * y.v[j];
    store_pack(table.data[2][chunk.t], pack.type, i, n, chunk.aligned, x);
  });
}

}  // namespace

void adasum_dots(const Context& context, Tensors a, Tensors b, double* dots) {
  const OnDevice device(context);
  const Workspace<Dots> partial(context, blocks_of(a));
  each_launch<2>({a, b}, [&](const Table<2>& table) {
    launch(context, dot_blocks, table.blocks(), kThreads, table, partial.get());
    launch(context, add_dots, table.count, kThreads, table, partial.get(), dots);
  });
}

void adasum_combine(const Context& context, Tensors a, Tensors b, const double* dots, Tensors out) {
  const OnDevice device(context);
  each_launch<3>({a, b, out}, [&](const Table<3>& table) {
    launch(context, combine_blocks, table.blocks(), kThreads, table, dots);
  });
}

void adasum_pair(const Context& context, Tensors a, Tensors b, Tensors out) {
  const OnDevice device(context);
  const Workspace<double> dots(context, 3 * a.count);
  adasum_dots(context, a, b, dots.get());
  adasum_combine(context, a, b, dots.get(), out);
}

}  // namespace boost_ext::cuda
