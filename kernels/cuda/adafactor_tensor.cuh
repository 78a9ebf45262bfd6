// What adafactor_step knows of a tensor on a device, and how a thread reads its ready gradients and their factors.
#pragma once

#include "jobs.cuh"
#include "ops/adafactor_step.h"

namespace boost_ext::cuda {

// A matrix up to this is a part of one block of threads, which has several of them; larger ones are summed in tiles.
constexpr std::int64_t kSmallMatrix = 1024;
constexpr int kWarps = kThreads / kWarp;
constexpr int kColumnsEach = kPack;  // columns of a lane in a tile
constexpr int kRowsEach = 8;         // rows of a lane in a tile

// What the step makes of a tensor once its sums are known.
struct Update {
  float coefficient;  // of u / sqrt(V)
  float shrink;       // of w
};

struct AdaFactorTensor {
  void* weights;  // or masters
  void* narrow;   // half weights beside their master, or nothing
  const void* grads;
  float *rows, *columns;  // R and C
  void *squares, *moments;
  float *of_rows, *of_columns;      // 1 / sqrt of what R / mean(R) and C hold
  float* means;                     // of the channels, if centralized
  double *row_sums, *column_sums;   // of the tiles of large matrices
  double *of_updates, *of_weights;  // sums of squares, one a block
  Update* update;
  std::int64_t size, height, width, channel;
  float rate, decay;
  DType weight, half, grad, square, moment;
  bool factored, aligned;

  __host__ __device__ std::int64_t matrix() const { return height * width; }
  __host__ __device__ std::int64_t matrices() const { return size / (height * width); }
  bool small() const { return factored && height * width <= kSmallMatrix; }
  bool large() const { return factored && height * width > kSmallMatrix; }
};
using AdaFactorJobs = Jobs<AdaFactorTensor>;

// The numbers of a call that all of its tensors share.
struct AdaFactorNumbers {
  float scale, eps, kept, added;  // of the gradient; eps1; beta1; 1 - beta1
  double keep, wide_eps, least_rms, clip_threshold;
  bool scale_parameter;
  const float* skip;

  explicit AdaFactorNumbers(const AdaFactorStep& step)
      : scale(static_cast<float>(step.settings->scale)),
        eps(static_cast<float>(step.settings->eps1)),
        kept(static_cast<float>(step.settings->beta1)),
        added(static_cast<float>(1 - step.settings->beta1)),
        keep(step.beta2),
        wide_eps(step.settings->eps1),
        least_rms(step.settings->eps2),
        clip_threshold(step.settings->clip_threshold),
        scale_parameter(step.settings->scale_parameter),
        skip(step.skip) {}
  BOOST_EXT_DEVICE bool skips() const { return skip != nullptr && *skip != 0; }

  // b average + (1-b) (mean + eps1)
  BOOST_EXT_DEVICE float moved(float average, double sum, double to_mean) const {
    const double mean = sum * to_mean + wide_eps;
    return static_cast<float>(keep * static_cast<double>(average) + (1 - keep) * mean);
  }
  // V of an element that has no factors.
  BOOST_EXT_DEVICE float squared(float old, float u) const {
    return static_cast<float>(keep) * old + static_cast<float>(1 - keep) * (u * u + eps);
  }
};

// Lanes of a warp for n elements.
__host__ __device__ inline int lanes_for(std::int64_t n) {
  int lanes = 1;
  while (lanes < kWarp && lanes < n) lanes *= 2;
  return lanes;
}

// A tile of a large matrix: `span` lanes of a warp along a row, and kWarp / span rows of a warp beside one another. A
// lane has kColumnsEach columns side by side where rows are as many packs; else columns that are a warp apart.
struct TileShape {
  bool packs;
  int span;
  std::int64_t rows, columns, bands, across;  // of a tile; tiles of a matrix
};
__host__ __device__ inline TileShape tile_shape(const AdaFactorTensor& x) {
  const bool packs = x.width % kPack == 0;
  const int span = lanes_for(packs ? x.width / kPack : x.width);
  const std::int64_t rows = std::int64_t{kWarps} * kRowsEach * (kWarp / span);
  const std::int64_t columns = packs ? span * kPack : span < kWarp ? span : kWarp * kColumnsEach;
  return {packs, span, rows, columns, (x.height + rows - 1) / rows, (x.width + columns - 1) / columns};
}

// The ready gradients u from i on, n <= kPack.
BOOST_EXT_DEVICE Pack gradients(const AdaFactorTensor& x, float scale, std::int64_t i, Count n) {
  Pack u = load_pack(x.grads, x.grad, i, n, x.aligned);
#pragma unroll
  for (int j = 0; j < kPack; ++j) u.v[j] *= scale;
  if (x.means == nullptr) return u;
  std::int64_t row = quotient(i, x.channel), left = (row + 1) * x.channel - i;
  float mean = x.means[row];
#pragma unroll
  for (int j = 0; j < kPack; ++j) {
    if (j >= n) break;
    if (left == 0) {
      mean = x.means[++row];
      left = x.channel;
    }
    --left;
    u.v[j] -= mean;
  }
  return u;
}

// 1 / sqrt(V) of factored tensors.
BOOST_EXT_DEVICE Pack factors(const AdaFactorTensor& x, std::int64_t i, int n) {
  Pack f;
  std::int64_t row = quotient(i, x.width), column = i - row * x.width, matrix = quotient(row, x.height);
  std::int64_t last = (matrix + 1) * x.height - 1;  // row of this matrix
  float of_row = x.of_rows[row];
  const float* const of_columns = x.of_columns + matrix * x.width + column;
  if (n == kPack && column + kPack <= x.width) {  // one row: loads that wait for nothing
#pragma unroll
    for (int j = 0; j < kPack; ++j) f.v[j] = of_columns[j];
#pragma unroll
    for (int j = 0; j < kPack; ++j) f.v[j] = of_row * f.v[j];
    return f;
  }
#pragma unroll
  for (int j = 0; j < kPack; ++j) {
    f.v[j] = 0;
    if (j >= n) continue;
    if (column == x.width) {
      column = 0;
      if (row == last) ++matrix, last += x.height;
      of_row = x.of_rows[++row];
    }
    f.v[j] = of_row * x.of_columns[matrix * x.width + column++];
  }
  return f;
}

}  // namespace boost_ext::cuda
