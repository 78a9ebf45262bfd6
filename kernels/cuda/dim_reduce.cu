// See ops/dim_reduce.h.
#include "in_order.cuh"
#include "multi_tensor.cuh"
#include "ops/bfgs_update.h"
#include "ops/dim_reduce.h"

namespace boost_ext::cuda {
namespace {

View vector(const float* data, std::int64_t n) {
  View v;
  v.data = const_cast<float*>(data);
  v.size = v.rows = n;
  return v;
}

// y, if there is one: how the gradient has changed.
__global__ void unscale(float* gk, Scalar inv_scale, const float* gk_last, std::int64_t k, float* y) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= k) return;
  const float g = gk[i] * inv_scale.get();
  gk[i] = g;
  if (y != nullptr) y[i] = g - gk_last[i];
}

// One block. product = B_next gk.
__global__ void find_slope(const float* gk, const double* product, std::int64_t k, float* dk, double* slope) {
  const double sum = sum_in_order(k, [&](std::int64_t i) {
    const auto d = static_cast<float>(-product[i]);
    dk[i] = d;
    return static_cast<double>(gk[i]) * static_cast<double>(d);
  });
  if (threadIdx.x == 0) *slope = sum;
}

// Factors as a kernel sees them.
struct FactorOf {
  float value;
  const float* device;
  std::int64_t stride;
  explicit FactorOf(const Factors& f)
      : value(f.value),
        device(f.is_array ? static_cast<const float*>(f.at.data) : nullptr),
        stride(f.at.size > 1 ? 1 : 0) {}
  BOOST_EXT_DEVICE float operator()(std::int64_t tensor) const {
    return device != nullptr ? device[tensor * stride] : value;
  }
};

// Lists of the table: weights, saved, dn.
template <bool kSave> __global__ void move_blocks(const Table<3> __grid_constant__ table, FactorOf step) {
  const Chunk chunk = chunk_of(table, blockIdx.x);
  void* weights = table.data[0][chunk.t];
  void* saved = table.data[1][chunk.t];
  const DType type = table.type(0, chunk.t);
  const float factor = step(table.tensor + chunk.t);
  each_pack(chunk, [&](std::int64_t i, Count n) {
    const bool still = factor == 0;  // 0 * inf is no restored weight
    Pack d{};
    if (!still) d = load_pack(table.data[2][chunk.t], DType::f32, i, n, chunk.aligned);
    if (kSave)
      copy_pack(saved, weights, type, i, n, chunk.aligned);
    else if (still)
      copy_pack(weights, saved, type, i, n, chunk.aligned);
    if (still) return;
    Pack w = load_pack(kSave ? weights : saved, type, i, n, chunk.aligned);
#pragma unroll
    for (int j = 0; j < kPack; ++j) w.v[j] = w.v[j] + factor * d.v[j];
    store_pack(weights, type, i, n, chunk.aligned, w);
  });
}

struct Rates {
  float gamma, alpha;
  Scalar rho, inv_scale;
  explicit Rates(const DimReduceCoefficients& c)
      : gamma(static_cast<float>(c.gamma)), alpha(static_cast<float>(c.alpha)), rho(c.rho), inv_scale(c.inv_scale) {}
};

// Lists of the table: momentum, gradients, their projection, dn, out, saved.
template <bool kWeights>
__global__ void apply_blocks(const Table<6> __grid_constant__ table, Rates rates, FactorOf lr) {
  const Chunk chunk = chunk_of(table, blockIdx.x);
  const auto read = [&](int list, std::int64_t i, Count n) {
    return load_pack(table.data[list][chunk.t], table.type(list, chunk.t), i, n, chunk.aligned);
  };
  const auto write = [&](int list, std::int64_t i, Count n, const Pack& x) {
    store_pack(table.data[list][chunk.t], table.type(list, chunk.t), i, n, chunk.aligned, x);
  };
  const float rho = rates.rho.get(), inv_scale = rates.inv_scale.get();
  const float rate = kWeights ? lr(table.tensor + chunk.t) : 0;
  const Source sources[] = {source(table, 0, chunk), source(table, 1, chunk), source(table, 2, chunk)};
  each_pack_of<3>(chunk, sources, [&](std::int64_t i, Count n, auto pack) {
    Pack d{}, from{};
    if (rho != 0) d = read(3, i, n);  // a refused dn may hold inf
    if (kWeights) from = read(5, i, n);
    Pack m = pack(0);
    const Pack g = pack(1), proj = pack(2);
#pragma unroll
    for (int j = 0; j < kPack; ++j) {
      m.v[j] = rates.gamma * m.v[j] + inv_scale * g.v[j] - proj.v[j];
      const float delta = rho == 0 ? rates.alpha * m.v[j] : rates.alpha * m.v[j] - rho * d.v[j];
      d.v[j] = kWeights ? from.v[j] - rate * delta : delta;
    }
    write(0, i, n, m);
    write(4, i, n, d);
  });
}

}  // namespace

void dim_reduce_direction(const Context& context, const float* B, const float* s, const float* gk_last, bool started,
                          float* gk, const Number& inv_scale, float* B_next, float* dk, std::int64_t k, double eps,
                          double* slope) {
  const OnDevice device(context);
  const Workspace<float> y(context, started ? k : 0);
  const Workspace<double> product(context, k);
  launch(context, unscale, (k + kThreads - 1) / kThreads, kThreads, gk, Scalar(inv_scale), gk_last, k, y.get());
  check(cudaMemcpyAsync(B_next, B, static_cast<std::size_t>(k * k) * sizeof(float), cudaMemcpyDeviceToDevice,
                        stream_of(context)),
        "dim_reduce_direction");
  if (started) {
    View matrix = vector(B_next, k * k);
    matrix.rows = k;
    bfgs_update(context, matrix, vector(s, k), vector(y.get(), k), eps, nullptr);
  }
  multiply<float>(context, B_next, gk, k, product.get());
  launch(context, find_slope, 1, kThreads, gk, product.get(), k, dk, slope);
}

void dim_reduce_trial(const Context& context, Tensors weights, Tensors saved, Tensors dn, const Factors& step,
                      bool save) {
  const OnDevice device(context);
  each_launch<3>({weights, saved, dn}, [&](const Table<3>& table) {
    launch(context, save ? move_blocks<true> : move_blocks<false>, table.blocks(), kThreads, table, FactorOf(step));
  });
}

void dim_reduce_apply(const Context& context, Tensors momentum, Tensors grads, Tensors grad_proj, Tensors dn,
                      const DimReduceCoefficients& c, Tensors out, Tensors saved, const Factors* lr) {
  const OnDevice device(context);
  const FactorOf rate(lr != nullptr ? *lr : Factors(0.0F));
  each_launch<6>({momentum, grads, grad_proj, dn, out, saved}, [&](const Table<6>& table) {
    launch(context, lr != nullptr ? apply_blocks<true> : apply_blocks<false>, table.blocks(), kThreads, table, Rates(c),
           rate);
  });
}

}  // namespace boost_ext::cuda
