// What the steps of matrices (muon_step, apollo_step) know of a matrix on a device, and how a thread moves its weights.
#pragma once

#include "jobs.cuh"

namespace boost_ext::cuda {

struct StepMatrix {
  void* weights;  // or masters
  void* narrow;   // half weights beside their master, or nothing
  const void* grads;
  std::int64_t size;
  float scale, keep;
  DType weight, half, grad;
  bool aligned;

  template <class Step> void take(const Step& step, std::int64_t t) {
    const View &w = step.weights[t], &other = step.narrow[t], &g = step.grads[t];
    weights = w.data, weight = w.dtype;
    narrow = other.data, half = other.dtype;
    grads = g.data, grad = g.dtype;
    size = w.size;
    scale = step.scale[t], keep = step.keep[t];
    aligned = true;
    for (const void* p : {static_cast<const void*>(weights), static_cast<const void*>(narrow), grads}) {
      aligned = aligned && reinterpret_cast<std::uintptr_t>(p) % 16 == 0;
    }
  }

  // A weight that is no longer what its master rounds to was set by somebody else, and the master follows.
  BOOST_EXT_DEVICE Pack load_weights(std::int64_t i, Count n) const {
    Pack w = load_pack(weights, weight, i, n, aligned);
    if (narrow == nullptr) return w;
    const Pack other = load_pack(narrow, half, i, n, aligned);
#pragma unroll
    for (int j = 0; j < kPack; ++j) w.v[j] = rounded(half, w.v[j]) == other.v[j] ? w.v[j] : other.v[j];
    return w;
  }
  BOOST_EXT_DEVICE void store_weights(std::int64_t i, Count n, const Pack& w) const {
    store_pack(weights, weight, i, n, aligned, w);
    if (narrow != nullptr) store_pack(narrow, half, i, n, aligned, w);
  }
};

template <class Matrix> std::int64_t blocks_of_matrix(const Matrix& x) { return blocks_of(x.size); }
template <class Matrix> BOOST_EXT_DEVICE Chunk chunk_of(const Jobs<Matrix>& jobs, int which) {
  const Matrix& x = jobs.job[which];
  const std::int64_t begin = (blockIdx.x - jobs.first[which]) * kChunk, left = x.size - begin;
  return {which, begin, static_cast<int>(left < kChunk ? left : kChunk), x.aligned};
}
BOOST_EXT_DEVICE bool skips(const float* skip) { return skip != nullptr && *skip != 0; }

}  // namespace boost_ext::cuda
