// See ops/adafactor_step.h. What needs all of a tensor before what follows is a launch of its own, for all tensors:
// the means of centralization; the sums of rows and columns; R, C and their factors; RMS; the update.
#include "adafactor_sums.cuh"
#include "ops/adafactor_step.h"

namespace boost_ext::cuda {
namespace {

struct Squares {
  double updates, weights;
};
BOOST_EXT_DEVICE Squares sum_block_of(const Squares& mine) {
  return reduce_block(
      mine, [](const Squares& a, const Squares& b) { return Squares{a.updates + b.updates, a.weights + b.weights}; });
}

std::int64_t blocks_of_chunks(const AdaFactorTensor& x) { return blocks_of(x.size); }
BOOST_EXT_DEVICE Chunk chunk_of(const AdaFactorJobs& jobs, int which) {
  const AdaFactorTensor& x = jobs.job[which];
  const std::int64_t begin = (blockIdx.x - jobs.first[which]) * kChunk;
  return {which, begin, static_cast<int>(smaller(kChunk, x.size - begin)), x.aligned};
}

// The sums of (u / sqrt(V))^2 and of w^2. A weight that is no longer what its master rounds to was set by somebody
// else, and the master follows.
__global__ void measure(const AdaFactorJobs __grid_constant__ jobs, const AdaFactorNumbers __grid_constant__ all) {
  if (all.skips()) return;
  const int which = job_of(jobs, blockIdx.x);
  const AdaFactorTensor& x = jobs.job[which];
  Squares sums{0, 0};
  const bool weights = x.narrow != nullptr || all.scale_parameter;
  each_pack(chunk_of(jobs, which), [&](std::int64_t i, Count n) {
    Pack w{};
    if (weights) w = load_pack(x.weights, x.weight, i, n, x.aligned);  // before conversions, which wait
    Pack u = gradients(x, all.scale, i, n);
    if (x.factored) {
      const Pack f = factors(x, i, n);
#pragma unroll
      for (int j = 0; j < kPack; ++j) u.v[j] *= f.v[j];
    } else {
      const Pack v = load_pack(x.squares, x.square, i, n, x.aligned);
#pragma unroll
      for (int j = 0; j < kPack; ++j) u.v[j] = u.v[j] / sqrtf(all.squared(v.v[j], u.v[j]));
    }
#pragma unroll
    for (int j = 0; j < kPack; ++j) {
      if (j < n) sums.updates += static_cast<double>(u.v[j]) * static_cast<double>(u.v[j]);
    }
    if (x.narrow != nullptr) {
      const Pack half = load_pack(x.narrow, x.half, i, n, x.aligned);
      bool set = false;
#pragma unroll
      for (int j = 0; j < kPack; ++j) {
        const bool same = rounded(x.half, w.v[j]) == half.v[j];
        set = set || !same;
        w.v[j] = same ? w.v[j] : half.v[j];
      }
      if (n.together) set = __any_sync(kWholeWarp, set);  // they write together
      if (set) store_pack(x.weights, x.weight, i, n, x.aligned, w);
    }
    if (!all.scale_parameter) return;
#pragma unroll
    for (int j = 0; j < kPack; ++j) sums.weights += static_cast<double>(w.v[j]) * static_cast<double>(w.v[j]);
  });
  sums = sum_block_of(sums);
  if (threadIdx.x != 0) return;
  const std::int64_t block = blockIdx.x - jobs.first[which];
  x.of_updates[block] = sums.updates;
  x.of_weights[block] = sums.weights;
}

// A block a tensor.
__global__ void decide(const AdaFactorJobs __grid_constant__ jobs, const AdaFactorNumbers __grid_constant__ all) {
  if (all.skips()) return;
  const AdaFactorTensor& x = jobs.job[blockIdx.x];
  const std::int64_t blocks = (x.size + kChunk - 1) / kChunk;
  Squares sums{0, 0};
  for (std::int64_t b = threadIdx.x; b < blocks; b += kThreads) {
    sums.updates += x.of_updates[b];
    sums.weights += x.of_weights[b];
  }
  sums = sum_block_of(sums);
  if (threadIdx.x != 0) return;
  const auto n = static_cast<double>(x.size);
  const double over = sqrt(sums.updates / n) / all.clip_threshold, rms = sqrt(sums.weights / n);
  double a = static_cast<double>(x.rate);
  if (all.scale_parameter) a *= rms < all.least_rms ? all.least_rms : rms;
  *x.update = {static_cast<float>(over <= 1 ? a : a / over), static_cast<float>(a * static_cast<double>(x.decay))};
}

BOOST_EXT_DEVICE float in_half(float v) { return v > 65504.0F && v != HUGE_VALF ? 65504.0F : v; }

__global__ void update(const AdaFactorJobs __grid_constant__ jobs, const AdaFactorNumbers __grid_constant__ all) {
  if (all.skips()) return;
  const int which = job_of(jobs, blockIdx.x);
  const AdaFactorTensor& x = jobs.job[which];
  const Update by = *x.update;
  each_pack(chunk_of(jobs, which), [&](std::int64_t i, Count n) {
    Pack w = load_pack(x.weights, x.weight, i, n, x.aligned);
    Pack step = gradients(x, all.scale, i, n);
    if (x.factored) {
      const Pack f = factors(x, i, n);
#pragma unroll
      for (int j = 0; j < kPack; ++j) step.v[j] *= f.v[j];
    } else {
      Pack v = load_pack(x.squares, x.square, i, n, x.aligned);
#pragma unroll
      for (int j = 0; j < kPack; ++j) {
        const float V = all.squared(v.v[j], step.v[j]);
        v.v[j] = x.square == DType::f16 ? in_half(V) : V;
        step.v[j] = step.v[j] / sqrtf(V);
      }
      store_pack(x.squares, x.square, i, n, x.aligned, v);
    }
#pragma unroll
    for (int j = 0; j < kPack; ++j) step.v[j] = by.coefficient * step.v[j];
    if (x.moments != nullptr) {
      const Pack m = load_pack(x.moments, x.moment, i, n, x.aligned);
#pragma unroll
      for (int j = 0; j < kPack; ++j) step.v[j] = all.kept * m.v[j] + all.added * step.v[j];
      store_pack(x.moments, x.moment, i, n, x.aligned, step);
    }
#pragma unroll
    for (int j = 0; j < kPack; ++j) {
      w.v[j] = by.shrink != 0 ? w.v[j] - by.shrink * w.v[j] - step.v[j] : w.v[j] - step.v[j];
    }
    store_pack(x.weights, x.weight, i, n, x.aligned, w);
    if (x.narrow != nullptr) store_pack(x.narrow, x.half, i, n, x.aligned, w);
  });
}

// Without the memory between launches, which `Memory` gives.
AdaFactorTensor tensor_of(const AdaFactorStep& step, std::int64_t t) {
  AdaFactorTensor x{};
  const View &w = step.weights[t], &narrow = step.narrow[t], &g = step.grads[t];
  x.weights = w.data, x.weight = w.dtype;
  x.narrow = narrow.data, x.half = narrow.dtype;
  x.grads = g.data, x.grad = g.dtype;
  x.size = w.size, x.height = w.height, x.width = w.width;
  x.channel = w.rows > 0 ? w.size / w.rows : w.size;
  x.factored = w.ndim >= 2;
  if (x.factored) {
    x.rows = static_cast<float*>(step.rows[t].data);
    x.columns = static_cast<float*>(step.columns[t].data);
  } else {
    x.squares = step.squares[t].data, x.square = step.squares[t].dtype;
  }
  if (step.moments != nullptr) x.moments = step.moments[t].data, x.moment = step.moments[t].dtype;
  x.rate = step.rate[t], x.decay = step.decay[t];
  std::uintptr_t addresses = 0;
  for (const void* p : {static_cast<const void*>(x.weights), static_cast<const void*>(x.narrow), x.grads,
                        static_cast<const void*>(x.squares), static_cast<const void*>(x.moments)}) {
    addresses |= reinterpret_cast<std::uintptr_t>(p);
  }
  x.aligned = addresses % 16 == 0;
  return x;
}

// Parts of one piece of memory: take() is called twice for each, first to count.
template <class T> class Parts {
 public:
  void count(std::int64_t n) { total_ += n; }
  std::int64_t total() const { return total_; }
  void lay(T* memory) { next_ = memory; }
  T* take(std::int64_t n) {
    T* const mine = next_;
    next_ += n;
    return mine;
  }

 private:
  std::int64_t total_ = 0;
  T* next_ = nullptr;
};

}  // namespace

void adafactor_step(const Context& context, const AdaFactorStep& step) {
  const OnDevice device(context);
  const AdaFactorNumbers all(step);
  std::vector<AdaFactorTensor> tensors;
  std::vector<std::int64_t> channels;
  Parts<float> floats;
  Parts<double> doubles;
  const auto lay_out = [&](AdaFactorTensor& x, std::int64_t means, bool counts) {
    const auto narrow = [&](std::int64_t n) { return counts ? floats.count(n), nullptr : floats.take(n); };
    const auto wide = [&](std::int64_t n) { return counts ? doubles.count(n), nullptr : doubles.take(n); };
    if (means > 0) x.means = narrow(means);
    x.of_updates = wide(blocks_of(x.size));
    x.of_weights = wide(blocks_of(x.size));
    if (!x.factored) return;
    x.of_rows = narrow(x.size / x.width);
    x.of_columns = narrow(x.size / x.height);
    if (!x.large()) return;
    const TileShape shape = tile_shape(x);
    x.row_sums = wide(x.size / x.width * shape.across);
    x.column_sums = wide(x.size / x.height * shape.bands);
  };
  for (std::int64_t t = 0; t < step.weights.count; ++t) {
    AdaFactorTensor x = tensor_of(step, t);
    if (x.size == 0) continue;
    channels.push_back(step.centralize[t] ? step.weights[t].rows : 0);
    lay_out(x, channels.back(), true);
    tensors.push_back(x);
  }
  const Workspace<float> float_memory(context, floats.total());
  const Workspace<double> double_memory(context, doubles.total());
  const Workspace<Update> updates(context, static_cast<std::int64_t>(tensors.size()));
  floats.lay(float_memory.get());
  doubles.lay(double_memory.get());
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    lay_out(tensors[t], channels[t], false);
    tensors[t].update = updates.get() + t;
  }
  const auto run = [&](auto kernel, auto blocks) {
    each_launch_of(tensors, blocks,
                   [&](const AdaFactorJobs& jobs) { launch(context, kernel, jobs.blocks(), kThreads, jobs, all); });
  };
  run(find_means, blocks_of_means);
  run(factor_small, blocks_of_small);
  run(sum_tiles, blocks_of_tiles);
  run(finish_columns, blocks_of_columns);
  run(finish_rows, blocks_of_rows);
  run(measure, blocks_of_chunks);
  run(decide, [](const AdaFactorTensor&) { return std::int64_t{1}; });
  run(update, blocks_of_chunks);
}

}  // namespace boost_ext::cuda
