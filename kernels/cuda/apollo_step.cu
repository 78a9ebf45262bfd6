// See ops/apollo_step.h. A launch for all matrices for each of: the means of centralization; the basis; what is
// projected, with its moments and sums; the lengths of the steps; the weights.
#include "lanes.cuh"
#include "matrix_step.cuh"
#include "ops/apollo_step.h"
#include "ops/optimizer_rules.h"
#include "ops/philox.h"

namespace boost_ext::cuda {
namespace {

constexpr int kWarps = kThreads / kWarp;
constexpr int kTogether = 8;  // blocks of the basis whose squares are summed in float32
constexpr double kTiny = 1e-30;

struct Sums {
  double update, adam, projected, gradient;  // squares
};
BOOST_EXT_DEVICE Sums add(const Sums& a, const Sums& b) {
  return {a.update + b.update, a.adam + b.adam, a.projected + b.projected, a.gradient + b.gradient};
}
BOOST_EXT_DEVICE float factor_of(const Sums& sums) {
  const double projected = square_root(sums.projected);
  return static_cast<float>(square_root(sums.adam) / (kTiny > projected ? kTiny : projected));
}

struct Matrix : StepMatrix {
  float *first, *second, *norm;
  float *signs, *factors, *means;  // of the basis, the channels and the rows, if centralized
  Sums* sums;                      // of each block that projects
  std::int32_t* offsets;           // of the basis
  std::int64_t rows, columns, block;
  std::uint32_t draw, stream;
  int rank;
  float lr;

  __host__ __device__ bool wide() const { return rows <= columns; }
  __host__ __device__ std::int64_t channels() const { return wide() ? columns : rows; }
  __host__ __device__ std::int64_t depth() const { return wide() ? rows : columns; }
  std::int64_t offset_count() const { return quotient_up(depth(), block); }
};
using Matrices = Jobs<Matrix>;

// The numbers of a call that all matrices share.
struct Numbers {
  Decay first, second;
  float correct1, correct2, eps;
  double size, limit;  // of a step
  bool tensor_wise;
  PhiloxRounds rounds;
  const float* skip;

  Numbers(const ApolloSettings& s, const float* flag)
      : first(s.step.hyper[0]),
        second(s.step.hyper[1]),
        correct1(static_cast<float>(1 / (1 - power(s.step.hyper[0], s.step.step)))),
        correct2(static_cast<float>(1 / (1 - power(s.step.hyper[1], s.step.step)))),
        eps(static_cast<float>(s.step.hyper[2])),
        size(square_root(s.factor)),
        limit(s.limit),
        tensor_wise(s.tensor_wise),
        rounds(static_cast<std::uint64_t>(s.seed)),
        skip(flag) {}
};

// A block a row.
std::int64_t blocks_of_means(const Matrix& x) { return x.means != nullptr ? x.rows : 0; }
__global__ void find_means(const Matrices __grid_constant__ jobs) {
  const int which = job_of(jobs, blockIdx.x);
  const Matrix& x = jobs.job[which];
  const std::int64_t row = blockIdx.x - jobs.first[which];
  const double sum =
      sum_in_block(x.columns, [&](std::int64_t j) { return x.scale * load(x.grads, x.grad, row * x.columns + j); });
  if (threadIdx.x == 0) x.means[row] = static_cast<float>(sum / static_cast<double>(x.columns));
}

// Four columns of the basis a thread.
std::int64_t blocks_of_basis(const Matrix& x) { return quotient_up(x.depth(), 4 * kThreads); }
__global__ void draw_basis(const Matrices __grid_constant__ jobs, const PhiloxRounds __grid_constant__ rounds) {
  const int which = job_of(jobs, blockIdx.x);
  const Matrix& x = jobs.job[which];
  const std::int64_t begin = ((blockIdx.x - jobs.first[which]) * kThreads + threadIdx.x) * 4;
  std::uint32_t word[4];
  philox(rounds, x.draw, x.stream, static_cast<std::uint64_t>(begin / 4), word);
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const std::int64_t k = begin + j;
    if (k >= x.depth()) return;
    x.signs[k] = word[j] >> 31 != 0 ? -1.0F : 1.0F;
    const std::int64_t b = quotient(k, x.block);
    if (b * x.block == k) x.offsets[b] = static_cast<std::int32_t>((word[j] & 0x7fffffffu) % x.rank);
  }
}

// The workers of a channel: the warps of the block, whose lanes have columns side by side, or the lanes of a warp,
// which have elements of a row side by side. Each has a row of P at a time, or some workers a part of it each.
template <bool kWide> struct Workers {
  static constexpr int kEach = kWide ? kWarps : kWarp, kChannels = kThreads / kEach;
  static BOOST_EXT_DEVICE int thread(int worker, int channel) {
    return kWide ? worker * kWarp + channel : channel * kWarp + worker;
  }
};
template <bool kWide> std::int64_t blocks_of_channels(const Matrix& x) {
  return x.wide() == kWide ? quotient_up(x.channels(), Workers<kWide>::kChannels) : 0;
}

template <bool kWide>
__global__ void project(const Matrices __grid_constant__ jobs, const Numbers __grid_constant__ all) {
  using W = Workers<kWide>;
  __shared__ float parts_of_sums[kThreads];
  __shared__ Sums of_workers[kThreads];
  if (skips(all.skip)) return;
  const int which = job_of(jobs, blockIdx.x);
  const Matrix& x = jobs.job[which];
  const std::int64_t block = blockIdx.x - jobs.first[which], depth = x.depth();
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int worker = kWide ? warp : lane, place = kWide ? lane : warp;
  const std::int64_t channel = block * W::kChannels + place;
  const bool mine = channel < x.channels();
  const int teams = x.rank < W::kEach ? x.rank : W::kEach, parts = W::kEach / teams;
  const int team = worker % teams, part = worker / teams;
  Sums sums{};
  for (std::int64_t first = 0; first < x.rank; first += teams) {
    const std::int64_t q = first + team;
    const bool works = mine && part < parts && q < x.rank;
    float r = 0;
    for (std::int64_t block_of_basis = 0, from = 0; works && from < depth;) {
      float squares = 0;
#pragma unroll
      for (int b = 0; b < kTogether && from < depth; ++b, ++block_of_basis, from += x.block) {
        const std::int64_t end = from + x.block < depth ? from + x.block : depth;
        std::int64_t start = q - x.offsets[block_of_basis];
        if (start < 0) start += x.rank;
        for (std::int64_t k = from + start + part * x.rank; k < end; k += parts * x.rank) {
          const float g = load(x.grads, x.grad, kWide ? k * x.columns + channel : channel * x.columns + k);
          const float u = x.scale * g - (x.means != nullptr ? x.means[kWide ? k : channel] : 0);
          squares += u * u;
          r += x.signs[k] * u;
        }
      }
      sums.gradient += static_cast<double>(squares);
    }
    if (parts > 1) {
      parts_of_sums[threadIdx.x] = r;
      __syncthreads();
    }
    if (works && part == 0) {
      for (int p = 1; p < parts; ++p) r += parts_of_sums[W::thread(p * teams + team, place)];
      const std::int64_t i = kWide ? q * x.columns + channel : channel * x.rank + q;
      const float m = all.first(x.first[i], r), v = all.second(x.second[i], r * r);
      x.first[i] = m;
      x.second[i] = v;
      const float adam = all.correct1 * m / (sqrtf(all.correct2 * v) + all.eps);
      sums.adam = add_product(sums.adam, adam, adam);
      sums.projected = add_product(sums.projected, r, r);
    }
    if (parts > 1) __syncthreads();
  }
  of_workers[threadIdx.x] = sums;
  __syncthreads();
  Sums channels{};
  if (worker == 0 && mine) {
    for (int other = 1; other < W::kEach; ++other) sums = add(sums, of_workers[W::thread(other, place)]);
    const float factor = factor_of(sums);
    x.factors[channel] = factor;
    sums.update = static_cast<double>(factor) * static_cast<double>(factor) * sums.gradient;
    channels = sums;
  }
  channels = reduce_block(channels, add);
  if (threadIdx.x == 0) x.sums[block] = channels;
}

// A block a matrix: what its channels are multiplied with.
__global__ void decide(const Matrices __grid_constant__ jobs, const Numbers __grid_constant__ all) {
  __shared__ double rate;
  __shared__ float of_all;
  if (skips(all.skip)) return;
  const Matrix& x = jobs.job[blockIdx.x];
  const int channels_each = x.wide() ? Workers<true>::kChannels : Workers<false>::kChannels;
  const std::int64_t channels = x.channels(), blocks = (channels + channels_each - 1) / channels_each;
  Sums sums{};
  for (std::int64_t b = threadIdx.x; b < blocks; b += kThreads) sums = add(sums, x.sums[b]);
  sums = reduce_block(sums, add);
  if (threadIdx.x == 0) {
    of_all = factor_of(sums);
    if (all.tensor_wise) sums.update = static_cast<double>(of_all) * static_cast<double>(of_all) * sums.gradient;
    double norm = all.size * square_root(sums.update), less = 1;
    const double most = all.limit * static_cast<double>(*x.norm);
    if (most > 0 && norm > most) {
      less = most / norm;
      norm = most;
    }
    *x.norm = static_cast<float>(norm);
    rate = static_cast<double>(x.lr) * all.size * less;
  }
  __syncthreads();
  for (std::int64_t j = threadIdx.x; j < channels; j += kThreads) {
    x.factors[j] = static_cast<float>(rate * static_cast<double>(all.tensor_wise ? of_all : x.factors[j]));
  }
}

__global__ void update(const Matrices __grid_constant__ jobs, const float* skip) {
  if (skips(skip)) return;
  const int which = job_of(jobs, blockIdx.x);
  const Matrix& x = jobs.job[which];
  each_pack(chunk_of(jobs, which), [&](std::int64_t i, Count n) {
    Pack w = x.load_weights(i, n);
    const Pack g = load_pack(x.grads, x.grad, i, n, x.aligned);
    std::int64_t row = quotient(i, x.columns), column = i - row * x.columns;
#pragma unroll
    for (int j = 0; j < kPack; ++j) {
      if (j >= n) break;
      if (column == x.columns) ++row, column = 0;
      const float u = x.scale * g.v[j] - (x.means != nullptr ? x.means[row] : 0);
      w.v[j] = x.keep * w.v[j] - x.factors[x.wide() ? column : row] * u;
      ++column;
    }
    x.store_weights(i, n, w);
  });
}

// Without the memory of the time of the launches.
Matrix matrix_of(const ProjectedStep& step, std::int64_t t) {
  Matrix x{};
  x.take(step, t);
  x.first = static_cast<float*>(step.first[t].data);
  x.second = static_cast<float*>(step.second[t].data);
  x.norm = static_cast<float*>(step.own[t].data);
  x.rows = step.weights[t].rows, x.columns = x.size / x.rows;
  x.rank = static_cast<int>(step.first[t].size / x.channels());
  x.block = apollo_block(x.rank);
  x.draw = step.keys[t].draw, x.stream = step.keys[t].stream;
  x.lr = step.lr[t];
  return x;
}

}  // namespace

void apollo_step(const Context& context, const ApolloSettings& settings, const ProjectedStep& step) {
  const OnDevice device(context);
  const Numbers all(settings, step.skip);
  std::vector<Matrix> matrices;
  std::int64_t floats = 0, integers = 0, blocks = 0;
  for (std::int64_t t = 0; t < step.weights.count; ++t) {
    matrices.push_back(matrix_of(step, t));
    const Matrix& x = matrices.back();
    floats += x.depth() + x.channels() + (step.centralize[t] ? x.rows : 0);
    integers += x.offset_count();
    blocks += blocks_of_channels<true>(x) + blocks_of_channels<false>(x);
  }
  const Workspace<float> float_memory(context, floats);
  const Workspace<std::int32_t> integer_memory(context, integers);
  const Workspace<Sums> sums(context, blocks);
  float* next = float_memory.get();
  std::int32_t* offset = integer_memory.get();
  Sums* sum = sums.get();
  for (std::size_t t = 0; t < matrices.size(); ++t) {
    Matrix& x = matrices[t];
    x.signs = next, next += x.depth();
    x.factors = next, next += x.channels();
    if (step.centralize[t]) x.means = next, next += x.rows;
    x.offsets = offset, offset += x.offset_count();
    x.sums = sum, sum += blocks_of_channels<true>(x) + blocks_of_channels<false>(x);
  }
  const auto run = [&](auto kernel, auto blocks_of, const auto&... arguments) {
    each_launch_of(matrices, blocks_of,
                   [&](const Matrices& jobs) { launch(context, kernel, jobs.blocks(), kThreads, jobs, arguments...); });
  };
  run(find_means, blocks_of_means);
  run(draw_basis, blocks_of_basis, all.rounds);
  run(project<true>, blocks_of_channels<true>, all);
  run(project<false>, blocks_of_channels<false>, all);
  run(decide, [](const Matrix&) { return std::int64_t{1}; }, all);
  run(update, blocks_of_matrix<Matrix>, step.skip);
}

}  // namespace boost_ext::cuda
