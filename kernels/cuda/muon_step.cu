// See ops/muon_step.h. Moments and what is to be orthogonalized in one launch for all matrices, the iteration by the
// kernels of orthogonalize, and the weights in a last launch.
#include "matrix_step.cuh"
#include "ops/centralize.h"
#include "ops/muon_step.h"
#include "ops/orthogonalize.h"

namespace boost_ext::cuda {
namespace {

constexpr std::int64_t kMostElements = std::int64_t{1} << 26;  // of directions at a time, and at least a matrix

struct Matrix : StepMatrix {
  float *moments, *directions;
  float rate;
  bool centralize;
};
using Matrices = Jobs<Matrix>;

__global__ void widen_gradients(const Matrices __grid_constant__ jobs) {
  const int which = job_of(jobs, blockIdx.x);
  const Matrix& x = jobs.job[which];
  each_pack(chunk_of(jobs, which), [&](std::int64_t i, Count n) {
    store_pack(x.directions, DType::f32, i, n, x.aligned, load_pack(x.grads, x.grad, i, n, x.aligned));
  });
}

__global__ void gather(const Matrices __grid_constant__ jobs, float kept, float added, bool nesterov,
                       const float* skip) {
  const int which = job_of(jobs, blockIdx.x);
  const Matrix& x = jobs.job[which];
  const bool nothing = skips(skip);  // then a matrix of zeros is orthogonalized
  each_pack(chunk_of(jobs, which), [&](std::int64_t i, Count n) {
    Pack u{};
    if (!nothing) {
      Pack m = load_pack(x.moments, DType::f32, i, n, x.aligned);  // before conversions, which wait
      u = load_pack(x.centralize ? x.directions : x.grads, x.grad, i, n, x.aligned);
#pragma unroll
      for (int j = 0; j < kPack; ++j) {
        u.v[j] *= x.scale;
        m.v[j] = kept * m.v[j] + added * u.v[j];
        u.v[j] = nesterov ? kept * m.v[j] + added * u.v[j] : m.v[j];
      }
      store_pack(x.moments, DType::f32, i, n, x.aligned, m);
    }
    store_pack(x.directions, DType::f32, i, n, x.aligned, u);
  });
}

__global__ void update(const Matrices __grid_constant__ jobs, const float* skip) {
  if (skips(skip)) return;
  const int which = job_of(jobs, blockIdx.x);
  const Matrix& x = jobs.job[which];
  each_pack(chunk_of(jobs, which), [&](std::int64_t i, Count n) {
    Pack w = x.load_weights(i, n);
    const Pack o = load_pack(x.directions, DType::f32, i, n, x.aligned);
#pragma unroll
    for (int j = 0; j < kPack; ++j) w.v[j] = x.keep * w.v[j] - x.rate * o.v[j];
    x.store_weights(i, n, w);
  });
}

Matrix matrix_of(const MuonStep& step, std::int64_t t) {
  Matrix x{};
  x.take(step, t);
  x.moments = static_cast<float*>(step.moments[t].data);
  x.rate = step.rate[t];
  x.centralize = step.centralize[t] != 0;
  return x;
}

// Steps the matrices, and forgets them.
void step_some(const Context& context, const MuonStep& step, std::vector<Matrix>& some, Views& views) {
  std::int64_t floats = 0;
  const auto up_to_pack = [](std::int64_t size) { return (size + kPack - 1) / kPack * kPack; };
  for (const Matrix& x : some) floats += up_to_pack(x.size);
  const Workspace<float> memory(context, floats);
  float* at = memory.get();
  Views centralized;
  std::vector<Matrix> wide;
  for (std::size_t k = 0; k < some.size(); ++k) {
    Matrix& x = some[k];
    x.directions = at, at += up_to_pack(x.size);
    views[k].data = x.directions, views[k].dtype = DType::f32;
    for (const float* p : {x.moments, x.directions}) {
      x.aligned = x.aligned && reinterpret_cast<std::uintptr_t>(p) % 16 == 0;
    }
    if (!x.centralize) continue;
    wide.push_back(x);
    centralized.push_back(views[k]);
    x.grad = DType::f32;
  }
  each_launch_of(wide, blocks_of_matrix<Matrix>,
                 [&](const Matrices& jobs) { launch(context, widen_gradients, jobs.blocks(), kThreads, jobs); });
  if (!centralized.empty()) centralize(context, centralized, centralized);
  const MuonSettings& s = *step.settings;
  each_launch_of(some, blocks_of_matrix<Matrix>, [&](const Matrices& jobs) {
    launch(context, gather, jobs.blocks(), kThreads, jobs, static_cast<float>(s.momentum),
           static_cast<float>(1 - s.momentum), s.nesterov, step.skip);
  });
  orthogonalize(context, views, views, s.iterations, s.eps, s.allow_tf32);
  each_launch_of(some, blocks_of_matrix<Matrix>,
                 [&](const Matrices& jobs) { launch(context, update, jobs.blocks(), kThreads, jobs, step.skip); });
  some.clear();
  views.clear();
}

}  // namespace

void muon_step(const Context& context, const MuonStep& step) {
  const OnDevice device(context);
  std::vector<Matrix> some;
  Views views;
  std::int64_t elements = 0;
  for (std::int64_t t = 0; t < step.weights.count; ++t) {
    const View& w = step.weights[t];
    if (elements > 0 && elements + w.size > kMostElements) {
      step_some(context, step, some, views);
      elements = 0;
    }
    elements += w.size;
    some.push_back(matrix_of(step, t));
    views.push_back(w);
  }
  step_some(context, step, some, views);
}

}  // namespace boost_ext::cuda
