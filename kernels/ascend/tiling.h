// How the kernels divide their work, and the numbers that they get: plain data and pure functions, for the host. All
// sizes are 64-bit, since k * n passes 2^32.
#pragma once

#include <cmath>
#include <cstdint>

namespace boost_ext::ascend {

// n elements over some cores: core i does [i * per_core, (i + 1) * per_core), the last one what is left.
struct Split {
  std::int64_t n;
  std::int64_t per_core;
  std::int32_t cores;  // those that have something to do; 0 where n is 0
};

// Parts are multiples of this: no two cores write into one line of the cache (512 bytes) whatever the dtype, and a core
// that starts has a few kilobytes to do.
constexpr std::int64_t kPart = 2048;

inline Split split(std::int64_t n, std::int32_t cores) {
  if (n <= 0) return {0, kPart, 0};
  const std::int64_t parts = (n + kPart - 1) / kPart;
  const std::int64_t each = (parts + cores - 1) / cores;
  return {n, each * kPart, static_cast<std::int32_t>((parts + each - 1) / each)};
}

// The tensors of one launch lie in a table, which is an argument of the kernel: below 1 KiB, which every version of
// CANN takes. Each tensor is divided over the cores by itself, its parts from core `first` on, behind those of the
// tensor before it, so that small tensors are not all the first core's.
struct UnscaleTensor {
  std::uint64_t grads;
  std::int64_t n, per_core;
  std::int64_t first;
};
struct UnscaleTable {
  static constexpr std::int32_t kMost = 28;
  UnscaleTensor tensors[kMost];
  std::int64_t count;
};

// Gives the tensors of a table their cores; returns how many cores there are to launch.
template <class Table> std::int32_t share(Table& table, std::int32_t cores) {
  std::int64_t parts = 0;
  for (std::int64_t i = 0; i < table.count; ++i) {
    const Split s = split(table.tensors[i].n, cores);
    table.tensors[i].per_core = s.per_core;
    table.tensors[i].first = parts;
    parts += s.cores;
  }
  const std::int64_t used = parts < cores ? parts : cores;
  for (std::int64_t i = 0; used > 0 && i < table.count; ++i) table.tensors[i].first %= used;
  return static_cast<std::int32_t>(used);
}

// Each core leaves a row of `values` float32, in whole blocks of 32 bytes, for the launch that adds the rows.
inline std::int64_t row_values(std::int64_t values) { return (values + 7) / 8 * 8; }
inline std::int64_t workspace_bytes(std::int64_t values, std::int32_t cores) { return cores * row_values(values) * 4; }

enum StepRule : std::int32_t { kMomentum, kAdam, kAdamWeightDecay };

// What a step of an optimizer needs of its hyperparameters. csrc/ops/optimizer_step.h has the formulas. An argument of
// kernels, and so plain data: no initializers.
struct StepValues {
  float scale, l2, lr, decay;
  float keep1, add1;  // b1 and 1 - b1; the momentum of kMomentum is keep1
  float keep2, add2;
  float eps;
  std::int32_t nesterov;
};

struct StepTensor {
  std::uint64_t weights, masters, grads, state0, state1;
  std::int64_t n, per_core;
  std::int64_t first;
  StepValues values;
};
struct StepTable {
  static constexpr std::int32_t kMost = 9;
  StepTensor tensors[kMost];
  std::int64_t count;
};
static_assert(sizeof(UnscaleTable) < 1000 && sizeof(StepTable) < 1000, "arguments of a kernel");

inline double power(double base, std::int64_t exponent) {
  double result = 1;
  for (; exponent > 0; exponent >>= 1, base *= base) {
    if (exponent & 1) result *= base;
  }
  return result;
}

inline StepValues momentum_values(float scale, float l2, float lr, double momentum, bool nesterov) {
  StepValues v{};
  v.scale = scale;
  v.l2 = l2;
  v.lr = lr;
  v.keep1 = static_cast<float>(momentum);
  v.nesterov = nesterov ? 1 : 0;
  return v;
}

// 1 - b is rounded once, from float64, and so is the learning rate with its correction of the bias in step t.
inline StepValues adam_values(float scale, float l2, float lr, double b1, double b2, double eps, bool nesterov,
                              std::int64_t t) {
  StepValues v{};
  v.scale = scale;
  v.l2 = l2;
  v.lr = static_cast<float>(lr * (std::sqrt(1 - power(b2, t)) / (1 - power(b1, t))));
  v.keep1 = static_cast<float>(b1);
  v.add1 = static_cast<float>(1 - b1);
  v.keep2 = static_cast<float>(b2);
  v.add2 = static_cast<float>(1 - b2);
  v.eps = static_cast<float>(eps);
  v.nesterov = nesterov ? 1 : 0;
  return v;
}

inline StepValues adam_weight_decay_values(float scale, float lr, float decay, double b1, double b2, double eps) {
  StepValues v = adam_values(scale, 0, lr, b1, b2, eps, false, 1);
  v.lr = lr;
  v.decay = decay;
  return v;
}

}  // namespace boost_ext::ascend
