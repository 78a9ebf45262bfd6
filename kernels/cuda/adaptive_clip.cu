// See ops/adaptive_clip.h.
#include "jobs.cuh"
#include "ops/adaptive_clip.h"

namespace boost_ext::cuda {
namespace {

constexpr std::int64_t kOfWarp = 1024;  // elements of a unit at most, which otherwise is shared by a block

struct Units {
  void* grads;
  const void* weights;
  std::int64_t count, width;
  DType grad, weight;
  __host__ __device__ int lanes() const { return width <= kOfWarp ? kWarp : kThreads; }
};

// For all lanes of the team, a warp or a block.
BOOST_EXT_DEVICE double sum_team(double sum, int lanes) {
  if (lanes == kWarp) {
    for (int distance = kWarp / 2; distance > 0; distance /= 2) sum += __shfl_xor_sync(kWholeWarp, sum, distance);
    return sum;
  }
  __shared__ double of_block;
  sum = sum_block(sum);
  if (threadIdx.x == 0) of_block = sum;
  __syncthreads();
  return of_block;
}

__global__ void clip_units(const Jobs<Units> __grid_constant__ jobs, const UnitLimits limits) {
  const int k = job_of(jobs, blockIdx.x);
  const Units& u = jobs.job[k];
  const int lanes = u.lanes(), lane = static_cast<int>(threadIdx.x) % lanes;
  const std::int64_t unit = (blockIdx.x - jobs.first[k]) * (kThreads / lanes) + threadIdx.x / lanes;
  if (unit >= u.count) return;  // whole teams
  const std::int64_t begin = unit * u.width;
  double g = 0, w = 0;
  for (std::int64_t i = lane; i < u.width; i += lanes) {
    const float x = load(u.grads, u.grad, begin + i), y = load(u.weights, u.weight, begin + i);
    g = add_product(g, x, x);
    w = add_product(w, y, y);
  }
  g = sqrt(sum_team(g, lanes));
  w = sqrt(sum_team(w, lanes));
  const double limit = limits.clipping * (w < limits.eps ? limits.eps : w);
  if (!(g > limit && isfinite(g))) return;
  const auto factor = static_cast<float>(limit / g);
  for (std::int64_t i = lane; i < u.width; i += lanes) {
    store(u.grads, u.grad, begin + i, factor * load(u.grads, u.grad, begin + i));
  }
}

}  // namespace

void adaptive_clip(const Context& context, Tensors grads, Tensors weights, const UnitLimits& limits) {
  const OnDevice device(context);
  std::vector<Units> all;
  for (std::int64_t i = 0; i < grads.count; ++i) {
    const View &g = grads[i], &w = weights[i];
    all.push_back({g.data, w.data, g.rows, g.size / g.rows, g.dtype, w.dtype});
  }
  each_launch_of(
      all, [](const Units& u) { return quotient_up(u.count, kThreads / u.lanes()); },
      [&](const Jobs<Units>& jobs) { launch(context, clip_units, jobs.blocks(), kThreads, jobs, limits); });
}

}  // namespace boost_ext::cuda
