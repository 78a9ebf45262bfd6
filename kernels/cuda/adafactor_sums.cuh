// The sums that a step of Adafactor begins with: the means of centralization, and R, C and their factors.
#pragma once

#include "adafactor_tensor.cuh"

namespace boost_ext::cuda {
namespace {

constexpr std::int64_t kLongChannel = 2048;

__host__ __device__ std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

BOOST_EXT_DEVICE double sum_lanes(double x, int span) {
  for (int distance = span / 2; distance > 0; distance /= 2) x += __shfl_xor_sync(kWholeWarp, x, distance);
  return x;
}

// The mean of each channel: by a block of threads, or by some lanes of a warp if it is short.
__host__ __device__ int threads_of_channel(const AdaFactorTensor& x) {
  return x.channel >= kLongChannel ? kThreads : lanes_for(x.channel % kPack == 0 ? x.channel / kPack : x.channel);
}
std::int64_t blocks_of_means(const AdaFactorTensor& x) {
  return x.means == nullptr ? 0 : quotient_up(x.size / x.channel, kThreads / threads_of_channel(x));
}
__global__ void find_means(const AdaFactorJobs __grid_constant__ jobs, const AdaFactorNumbers __grid_constant__ all) {
  if (all.skips()) return;
  const int which = job_of(jobs, blockIdx.x);
  const AdaFactorTensor& x = jobs.job[which];
  const int lanes = threads_of_channel(x), thread = static_cast<int>(threadIdx.x);
  const std::int64_t channel = (blockIdx.x - jobs.first[which]) * (kThreads / lanes) + thread / lanes;
  const std::int64_t begin = channel * x.channel;
  double sum = 0;
  if (begin < x.size) {
    const bool packs = x.channel % kPack == 0;
    for (std::int64_t i = thread % lanes; packs && i < x.channel / kPack; i += lanes) {
      const Count n(kPack, lanes >= kWarp && i - thread % kWarp + kWarp <= x.channel / kPack);
      const Pack g = load_pack(x.grads, x.grad, begin + i * kPack, n, x.aligned);
#pragma unroll
      for (int j = 0; j < kPack; ++j) sum += static_cast<double>(all.scale * g.v[j]);
    }
    for (std::int64_t i = thread % lanes; !packs && i < x.channel; i += lanes) {
      sum += static_cast<double>(all.scale * load(x.grads, x.grad, begin + i));
    }
  }
  sum = lanes == kThreads ? sum_block(sum) : sum_lanes(sum, lanes);
  if (thread % lanes == 0 && begin < x.size) {
    x.means[channel] = static_cast<float>(sum / static_cast<double>(x.channel));
  }
}

// Small matrices from their sums to their factors: a block has some of them in its shared memory.
std::int64_t matrices_of_block(const AdaFactorTensor& x) { return kChunk / x.matrix(); }
std::int64_t blocks_of_small(const AdaFactorTensor& x) {
  return x.small() ? quotient_up(x.matrices(), matrices_of_block(x)) : 0;
}
__global__ void factor_small(const AdaFactorJobs __grid_constant__ jobs, const AdaFactorNumbers __grid_constant__ all) {
  __shared__ float u[kChunk];
  if (all.skips()) return;
  const int which = job_of(jobs, blockIdx.x);
  const AdaFactorTensor& x = jobs.job[which];
  const int height = static_cast<int>(x.height), width = static_cast<int>(x.width), each = kChunk / (height * width);
  const std::int64_t first = (blockIdx.x - jobs.first[which]) * each;
  const int count = static_cast<int>(smaller(each, x.matrices() - first));
  const std::int64_t begin = first * x.matrix(), row = first * x.height, column = first * x.width;
  for (int i = static_cast<int>(threadIdx.x); i < count * height * width; i += kThreads) {
    u[i] = all.scale * load(x.grads, x.grad, begin + i);
    if (x.means != nullptr) u[i] -= x.means[quotient(begin + i, x.channel)];
  }
  __syncthreads();
  const auto sum_of = [&](int at, int step, int n) {
    double sum = 0;
    for (int k = 0; k < n; ++k, at += step) sum += static_cast<double>(u[at]) * static_cast<double>(u[at]);
    return sum;
  };
  for (int i = static_cast<int>(threadIdx.x); i < count * height; i += kThreads) {
    x.rows[row + i] = all.moved(x.rows[row + i], sum_of(i * width, 1, width), 1 / static_cast<double>(width));
  }
  for (int j = static_cast<int>(threadIdx.x); j < count * width; j += kThreads) {
    const double sum = sum_of(j / width * height * width + j % width, width, height);
    const float C = x.columns[column + j] = all.moved(x.columns[column + j], sum, 1 / static_cast<double>(height));
    x.of_columns[column + j] = 1 / sqrtf(C);
  }
  __syncthreads();
  for (int m = static_cast<int>(threadIdx.x); m < count; m += kThreads) {
    double sum = 0;
    for (int i = m * height; i < (m + 1) * height; ++i) sum += static_cast<double>(x.rows[row + i]);
    u[m] = static_cast<float>(sum / static_cast<double>(height));
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < count * height; i += kThreads) {
    x.of_rows[row + i] = 1 / sqrtf(x.rows[row + i] / u[i / height]);
  }
}

// The sums of u^2 over the rows and over the columns of a tile of a large matrix, in one read.
std::int64_t blocks_of_tiles(const AdaFactorTensor& x) {
  if (!x.large()) return 0;
  const TileShape shape = tile_shape(x);
  return x.matrices() * shape.bands * shape.across;
}
// What a lane has of a row, on its way without a branch, and what it is in float32. Zeros where there is nothing.
struct RowOfTile {
  Coming coming;  // of columns a warp apart one word each

  BOOST_EXT_DEVICE void read(const AdaFactorTensor& x, const TileShape& shape, std::int64_t begin,
                             std::int64_t column) {
    coming = {{}, x.grad, Way::alone, nullptr};
    if (begin < 0) return;
    if (shape.packs) {
      const std::int64_t rest = x.width - column + static_cast<int>(threadIdx.x) % kWarp * kPack;
      const Count n(kPack, shape.span == kWarp && rest >= kWarp * kPack);
      if (column < x.width) coming = coming_pack(x.grads, x.grad, begin + column, n, x.aligned);
      return;
    }
#pragma unroll
    for (int c = 0; c < kColumnsEach; ++c) {
      const std::int64_t at = column + c * kWarp;
      if (at >= x.width || (c > 0 && shape.span < kWarp)) continue;
      if (x.grad == DType::f32)
        coming.raw.word[c] = static_cast<const unsigned*>(x.grads)[begin + at];
      else
        coming.raw.word[c] = static_cast<const unsigned short*>(x.grads)[begin + at];
    }
  }
  BOOST_EXT_DEVICE Pack get(const AdaFactorTensor& x, const TileShape& shape) const {
    if (shape.packs) return coming.get();
    Pack p;
#pragma unroll
    for (int c = 0; c < kColumnsEach; ++c) {
      const unsigned word = coming.raw.word[c];
      p.v[c] = x.grad == DType::f32   ? __uint_as_float(word)
               : x.grad == DType::f16 ? __half2float(__ushort_as_half(static_cast<unsigned short>(word)))
                                      : __uint_as_float(word << 16);
    }
    return p;
  }
};

__global__ void __launch_bounds__(kThreads, 2)
    sum_tiles(const AdaFactorJobs __grid_constant__ jobs, const AdaFactorNumbers __grid_constant__ all) {
  __shared__ double shared[kWarps][kColumnsEach][kWarp + 1];
  if (all.skips()) return;
  constexpr int kTogether = 4;  // rows
  const int which = job_of(jobs, blockIdx.x);
  const AdaFactorTensor& x = jobs.job[which];
  const TileShape shape = tile_shape(x);
  const std::int64_t tile = blockIdx.x - jobs.first[which], line = quotient(tile, shape.across);
  const std::int64_t part = tile - line * shape.across, m = quotient(line, shape.bands), band = line - m * shape.bands;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarp, lane = thread % kWarp;
  const int beside = kWarp / shape.span;  // rows of a warp at a time
  const std::int64_t column = part * shape.columns + lane % shape.span * (shape.packs ? kPack : 1);
  double of_columns[kColumnsEach] = {};
  for (int first = 0; first < kRowsEach; first += kTogether) {
    RowOfTile rows[kTogether];
    const auto row_at = [&](int k) {
      return band * shape.rows + ((first + k) * kWarps + warp) * beside + lane / shape.span;
    };
    const auto begin_of = [&](int k) { return row_at(k) < x.height ? (m * x.height + row_at(k)) * x.width : -1; };
#pragma unroll
    for (int k = 0; k < kTogether; ++k) rows[k].read(x, shape, begin_of(k), column);
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      const std::int64_t begin = begin_of(k);
      const float mean = begin >= 0 && x.means != nullptr ? x.means[quotient(begin, x.channel)] : 0.0F;
      const Pack g = rows[k].get(x, shape);
      double of_row = 0;
#pragma unroll
      for (int c = 0; c < kColumnsEach; ++c) {
        const bool there =
            shape.packs ? column < x.width : column + c * kWarp < x.width && (c == 0 || shape.span == kWarp);
        const float u = begin >= 0 && there ? all.scale * g.v[c] - mean : 0.0F;
        const double squared = static_cast<double>(u) * static_cast<double>(u);
        of_row += squared;
        of_columns[c] += squared;
      }
      of_row = sum_lanes(of_row, shape.span);
      if (begin >= 0 && lane % shape.span == 0) {
        x.row_sums[(m * x.height + row_at(k)) * shape.across + part] = of_row;
      }
    }
  }
#pragma unroll
  for (int c = 0; c < kColumnsEach; ++c) shared[warp][c][lane] = of_columns[c];
  __syncthreads();
  const std::int64_t at = part * shape.columns + thread;
  if (thread >= shape.columns || at >= x.width) return;
  const int c = shape.packs ? thread % kPack : thread / kWarp, of_lane = shape.packs ? thread / kPack : thread % kWarp;
  double sum = 0;
  for (int w = 0; w < kWarps; ++w) {
    for (int g = 0; g < beside; ++g) sum += shared[w][c][g * shape.span + of_lane];
  }
  x.column_sums[(m * shape.bands + band) * x.width + at] = sum;
}

// C of large matrices and their factors: a thread a column.
std::int64_t blocks_of_columns(const AdaFactorTensor& x) {
  return x.large() ? quotient_up(x.size / x.height, kThreads) : 0;
}
__global__ void finish_columns(const AdaFactorJobs __grid_constant__ jobs,
                               const AdaFactorNumbers __grid_constant__ all) {
  if (all.skips()) return;
  const int which = job_of(jobs, blockIdx.x);
  const AdaFactorTensor& x = jobs.job[which];
  const std::int64_t j = (blockIdx.x - jobs.first[which]) * kThreads + threadIdx.x;
  if (j >= x.size / x.height) return;
  const std::int64_t bands = tile_shape(x).bands, m = quotient(j, x.width);
  const double* const sums = x.column_sums + m * bands * x.width + (j - m * x.width);
  double sum = 0;
#pragma unroll 8
  for (std::int64_t band = 0; band < bands; ++band) sum += sums[band * x.width];
  const float C = x.columns[j] = all.moved(x.columns[j], sum, 1 / static_cast<double>(x.height));
  x.of_columns[j] = 1 / sqrtf(C);
}

// R of large matrices and their factors: a block a matrix, since these need the mean of its R.
std::int64_t blocks_of_rows(const AdaFactorTensor& x) { return x.large() ? x.matrices() : 0; }
__global__ void finish_rows(const AdaFactorJobs __grid_constant__ jobs, const AdaFactorNumbers __grid_constant__ all) {
  __shared__ float mean;
  if (all.skips()) return;
  const int which = job_of(jobs, blockIdx.x);
  const AdaFactorTensor& x = jobs.job[which];
  const std::int64_t across = tile_shape(x).across, first = (blockIdx.x - jobs.first[which]) * x.height;
  double total = 0;
  for (std::int64_t i = first + threadIdx.x; i < first + x.height; i += kThreads) {
    double sum = 0;
    for (std::int64_t part = 0; part < across; ++part) sum += x.row_sums[i * across + part];
    const float R = x.rows[i] = all.moved(x.rows[i], sum, 1 / static_cast<double>(x.width));
    total += static_cast<double>(R);
  }
  total = sum_block(total);
  if (threadIdx.x == 0) mean = static_cast<float>(total / static_cast<double>(x.height));
  __syncthreads();
  for (std::int64_t i = first + threadIdx.x; i < first + x.height; i += kThreads) {
    x.of_rows[i] = 1 / sqrtf(x.rows[i] / mean);
  }
}

}  // namespace
}  // namespace boost_ext::cuda
