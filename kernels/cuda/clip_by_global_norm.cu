// See ops/clip_by_global_norm.h.
#include "multi_tensor.cuh"
#include "ops/clip_by_global_norm.h"
#include "ops/global_norm.h"
#include "ops/unscale_and_check.h"

namespace boost_ext::cuda {
namespace {

constexpr std::int64_t kMostClippers = 4096;  // blocks: some rounds of all that a GPU runs at a time

// g <- (g * first) * second. A factor below the normal numbers is two, as on the CPU: it would lose its last bits.
struct Factor {
  float first, second;
};

// The norm, and what the gradients are multiplied with: 1 if they are short enough, or not finite.
__global__ void find_factor(const double* squares, std::int64_t count, double clip_norm, Scalar scale, double exact,
                            double* out, Factor* factor) {
  const double sum = sum_in_block(count, [&](std::int64_t i) { return squares[i]; });
  if (threadIdx.x != 0) return;
  const double norm = sqrt(sum) / (scale.device != nullptr ? static_cast<double>(scale.get()) : exact);
  *out = norm;
  *factor = {1, 1};
  if (!(norm > clip_norm) || isinf(norm)) return;
  const double wanted = clip_norm / norm < kLeastSubnormal ? kLeastSubnormal : clip_norm / norm;
  const bool twice = wanted < kLeastNormal;
  *factor = {twice ? static_cast<float>(1 / kTwo64) : 1.0F, static_cast<float>(twice ? wanted * kTwo64 : wanted)};
}

// Blocks go on from chunk to chunk, so that few of them come and go where nothing is to be done.
__global__ void clip_blocks(const Table<1> __grid_constant__ table, const Factor* factor) {
  const Factor by = *factor;
  if (by.second == 1) return;
  for (std::int64_t b = blockIdx.x; b < table.blocks(); b += gridDim.x) {
    // From the end, of which most is still in the cache from the norm.
    const Chunk chunk = chunk_of(table, table.blocks() - 1 - b);
    void* grads = table.data[0][chunk.t];
    each_pack_of<1>(chunk, {source(table, 0, chunk)}, [&](std::int64_t i, Count n, auto pack) {
      Pack g = pack(0);
#pragma unroll
      for (int j = 0; j < kPack; ++j) {
        if (by.first != 1) g.v[j] = rounded(pack.type, by.first * g.v[j]);
        g.v[j] = by.second * g.v[j];
      }
      store_pack(grads, pack.type, i, n, chunk.aligned, g);
    });
  }
}

}  // namespace

void clip_by_global_norm(const Context& context, Tensors grads, Tensors distinct, double clip_norm, const Number& scale,
                         double* norm) {
  const OnDevice device(context);
  const Workspace<double> squares(context, grads.count);
  const Workspace<Factor> factor(context, 1);
  sums_of_squares(context, grads, squares.get());
  launch(context, find_factor, 1, kThreads, squares.get(), grads.count, clip_norm, Scalar(scale), scale.value, norm,
         factor.get());
  each_launch<1>({distinct}, [&](const Table<1>& table) {
    const std::int64_t blocks = table.blocks() < kMostClippers ? table.blocks() : kMostClippers;
    launch(context, clip_blocks, blocks, kThreads, table, factor.get());
  });
}

}  // namespace boost_ext::cuda
