// See ops/centralize.h.
//
// A row is read in units: packs of 8 elements where all rows begin at one, else single elements. Which lane has which
// unit follows from the row's length alone, and so do the order of the sum and its bits. Rows that fit into the
// registers of a block are read once: they belong to teams of 1 to 256 lanes. Longer ones are shared by blocks, and
// read again when the sums of their parts are known.
#include "multi_tensor.cuh"
#include "ops/centralize.h"

namespace boost_ext::cuda {
namespace {

constexpr int kSingles = 8, kPacks = 4;    // units that a lane holds at most
constexpr std::int64_t kMostParts = 1024;  // of a row: their sums are four loads a thread

// Some matrices, all of a kind. Block b of the launch works on rows of matrix t where first[t] <= b < first[t + 1].
struct Matrices {
  static constexpr int kCapacity = 720;
  std::int32_t count;
  std::int32_t parts[kCapacity];  // lanes that share a row; or blocks that do
  std::int64_t rows[kCapacity];
  std::int64_t width[kCapacity];
  const void* from[kCapacity];
  void* to[kCapacity];
  std::int32_t first[kCapacity + 1];
  DType dtype[kCapacity];
  std::uint8_t aligned[kCapacity];
};
static_assert(sizeof(Matrices) <= kParameterBytes);

__host__ __device__ inline bool in_packs(std::int64_t width) { return width % kPack == 0; }
__host__ __device__ inline std::int64_t units_of(std::int64_t width) { return in_packs(width) ? width / kPack : width; }
__host__ __device__ inline int held_of(std::int64_t width) { return in_packs(width) ? kPacks : kSingles; }
__host__ __device__ inline std::int64_t batch_of(std::int64_t width) { return kThreads * held_of(width); }  // a block's
// What a lane of a team holds of a row: a power of two.
__host__ __device__ inline int held_by_lane(std::int64_t width, int lanes) {
  int held = 1;
  while (std::int64_t{held} * lanes < units_of(width)) held *= 2;
  return held;
}

// Units of a matrix: how they are read and written. The dtype is a template's, so that no branch parts the loads of a
// thread from one another.
template <class T> struct Singles {
  static constexpr int kSize = 1, kHeld = kSingles;
  static constexpr DType kType = sizeof(T) == 4                     ? DType::f32
                                 : std::is_same_v<T, __nv_bfloat16> ? DType::bf16
                                                                    : DType::f16;
  const T* from;
  T* to;
  BOOST_EXT_DEVICE Singles(const Matrices& m, int t)
      : from(static_cast<const T*>(m.from[t])), to(static_cast<T*>(m.to[t])) {}
  BOOST_EXT_DEVICE void read(float (&x)[1], std::int64_t i, bool) const { x[0] = as_float(from[i]); }
  BOOST_EXT_DEVICE void write(const float (&x)[1], std::int64_t i, bool) const { store(to, kType, i, x[0]); }
};

template <DType kType, bool kAligned> struct Vectors {
  static constexpr int kSize = kPack, kHeld = kPacks;
  const void* from;
  void* to;
  DType type;
  BOOST_EXT_DEVICE Vectors(const Matrices& m, int t)
      : from(m.from[t]), to(m.to[t]), type(kType == DType::other ? DType(m.dtype[t]) : kType) {}
  BOOST_EXT_DEVICE void read(float (&x)[kPack], std::int64_t i, bool together) const {
    const Pack p = load_pack(from, type, i, {kPack, together}, kAligned);
#pragma unroll
    for (int j = 0; j < kPack; ++j) x[j] = p.v[j];
  }
  BOOST_EXT_DEVICE void write(const float (&x)[kPack], std::int64_t i, bool together) const {
    Pack p;
#pragma unroll
    for (int j = 0; j < kPack; ++j) p.v[j] = x[j];
    store_pack(to, type, i, {kPack, together}, kAligned, p);
  }
};

// body(units of matrix t)
template <class Body> BOOST_EXT_DEVICE void typed(const Matrices& m, int t, Body body) {
  const DType type = m.dtype[t];
  if (!in_packs(m.width[t])) {
    if (type == DType::f32) return body(Singles<float>(m, t));
    if (type == DType::f16) return body(Singles<__half>(m, t));
    return body(Singles<__nv_bfloat16>(m, t));
  }
  if (!m.aligned[t]) return body(Vectors<DType::other, false>(m, t));
  if (type == DType::f32) return body(Vectors<DType::f32, true>(m, t));
  if (type == DType::f16) return body(Vectors<DType::f16, true>(m, t));
  body(Vectors<DType::bf16, true>(m, t));
}

// Units lane, lane + lanes, ... of a row as far as there are some, zeros behind them. `together`: the rows of the teams
// of a warp are as long as its teams, and lie side by side.
template <class Units, int kCount> struct Held {
  float v[kCount][Units::kSize];

  // Whether all lanes of the warp have a unit of this round.
  static BOOST_EXT_DEVICE bool whole(int k, int lane, int lanes, std::int64_t count, bool together) {
    return together || (lanes >= kWarp && lane / kWarp * kWarp + k * lanes + kWarp <= count);
  }
  BOOST_EXT_DEVICE void read(const Units& units, std::int64_t begin, int lane, int lanes, std::int64_t count,
                             bool together = false) {
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
#pragma unroll
      for (int j = 0; j < Units::kSize; ++j) v[k][j] = 0;
      if (lane + k * lanes < count) {
        units.read(v[k], begin + (lane + k * lanes) * Units::kSize, whole(k, lane, lanes, count, together));
      }
    }
  }
  BOOST_EXT_DEVICE double sum() const {
    double sum = 0;
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
#pragma unroll
      for (int j = 0; j < Units::kSize; ++j) sum += static_cast<double>(v[k][j]);
    }
    return sum;
  }
  BOOST_EXT_DEVICE void write(const Units& units, std::int64_t begin, int lane, int lanes, std::int64_t count,
                              float mean, bool together = false) {
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
#pragma unroll
      for (int j = 0; j < Units::kSize; ++j) v[k][j] -= mean;
      if (lane + k * lanes < count) {
        units.write(v[k], begin + (lane + k * lanes) * Units::kSize, whole(k, lane, lanes, count, together));
      }
    }
  }
};

// The sum over the lanes of a team, for all of them.
BOOST_EXT_DEVICE double sum_lanes(double x, int lanes) {
  for (int distance = (lanes < kWarp ? lanes : kWarp) / 2; distance > 0; distance /= 2) {
    x += __shfl_xor_sync(kWholeWarp, x, distance);
  }
  if (lanes <= kWarp) return x;
  __shared__ double warps[kThreads / kWarp];
  if (threadIdx.x % kWarp == 0) warps[threadIdx.x / kWarp] = x;
  __syncthreads();
  const int first = static_cast<int>(threadIdx.x) / lanes * (lanes / kWarp);
  x = warps[first];
  for (int w = 1; w < lanes / kWarp; ++w) x += warps[first + w];
  return x;
}

// Teams take as many rows at a time as each lane can hold, so that as many loads are on their way as for long rows.
template <int kCount, class Units>
BOOST_EXT_DEVICE void centralize_rows(const Matrices& m, int t, std::int64_t block, const Units& units) {
  constexpr int kRows = Units::kHeld / kCount;
  const int lanes = m.parts[t], teams = kThreads / lanes;
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  const std::int64_t width = m.width[t], count = units_of(width);
  const std::int64_t first = block * teams * kRows + threadIdx.x / lanes;
  Held<Units, kCount> held[kRows];
  double sums[kRows];
  // Of the first team of the warp, and behind that of the last one.
  const std::int64_t of_warp = first - static_cast<int>(threadIdx.x) % kWarp / lanes, beside = kWarp / lanes;
  const auto together = [&](int r) { return lanes == count && of_warp + r * teams + beside <= m.rows[t]; };
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const std::int64_t row = first + r * teams;
    held[r].read(units, row * width, lane, lanes, row < m.rows[t] ? count : 0, together(r));
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) sums[r] = sum_lanes(held[r].sum(), lanes);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const std::int64_t row = first + r * teams;
    const auto mean = static_cast<float>(sums[r] / static_cast<double>(width));
    held[r].write(units, row * width, lane, lanes, row < m.rows[t] ? count : 0, mean, together(r));
  }
}

__global__ void centralize_teams(const Matrices __grid_constant__ m) {
  const int t = tensor_of(m.first, 0, m.count, blockIdx.x);
  const std::int64_t block = static_cast<std::int64_t>(blockIdx.x) - m.first[t];
  typed(m, t, [&](const auto& units) {
    const int held = held_by_lane(m.width[t], m.parts[t]);
    if (held == 1) return centralize_rows<1>(m, t, block, units);
    if (held == 2) return centralize_rows<2>(m, t, block, units);
    if (held == 4) return centralize_rows<4>(m, t, block, units);
    if constexpr (std::decay_t<decltype(units)>::kHeld == 8) centralize_rows<8>(m, t, block, units);
  });
}

// body(first element, number of units) for every batch of a block's part of a row.
template <class Body> BOOST_EXT_DEVICE void each_batch(const Matrices& m, int t, std::int64_t block, Body body) {
  const std::int64_t width = m.width[t], batch = batch_of(width), size = in_packs(width) ? kPack : 1;
  const std::int64_t row = block / m.parts[t], part = block % m.parts[t];
  for (std::int64_t at = part * batch; at < units_of(width); at += m.parts[t] * batch) {
    const std::int64_t rest = units_of(width) - at;
    body(row * width + at * size, rest < batch ? rest : batch);
  }
}

__global__ void sum_parts(const Matrices __grid_constant__ m, double* partial) {
  const int t = tensor_of(m.first, 0, m.count, blockIdx.x);
  const std::int64_t block = static_cast<std::int64_t>(blockIdx.x) - m.first[t];
  typed(m, t, [&](const auto& units) {
    using Units = std::decay_t<decltype(units)>;
    double sum = 0;
    each_batch(m, t, block, [&](std::int64_t begin, std::int64_t count) {
      Held<Units, Units::kHeld> held;
      held.read(units, begin, static_cast<int>(threadIdx.x), kThreads, count);
      sum += held.sum();
    });
    sum = sum_lanes(sum, kThreads);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
  });
}

__global__ void subtract_means(const Matrices __grid_constant__ m, const double* partial) {
  // From the end, of which most is still in the cache.
  const std::int64_t b = static_cast<std::int64_t>(m.first[m.count]) - 1 - static_cast<std::int64_t>(blockIdx.x);
  const int t = tensor_of(m.first, 0, m.count, b), parts = m.parts[t], lane = static_cast<int>(threadIdx.x);
  const std::int64_t block = b - m.first[t];
  const double* sums = partial + m.first[t] + block / parts * parts;
  double sum = 0;
  for (int p = lane; p < parts; p += kThreads) sum += sums[p];
  const auto mean = static_cast<float>(sum_lanes(sum, kThreads) / static_cast<double>(m.width[t]));
  typed(m, t, [&](const auto& units) {
    using Units = std::decay_t<decltype(units)>;
    each_batch(m, t, block, [&](std::int64_t begin, std::int64_t count) {
      Held<Units, Units::kHeld> held;
      held.read(units, begin, lane, kThreads, count);
      held.write(units, begin, lane, kThreads, count, mean);
    });
  });
}

enum class Kind { copied, held, shared };

std::int64_t width_of(const View& v) { return v.size / v.rows; }
// Up to a warp, so that neighbours read what lies side by side; then as few as can hold a row.
int lanes_of(std::int64_t width) {
  int lanes = 1;
  while (lanes < units_of(width) && (lanes < kWarp || lanes * held_of(width) < units_of(width))) lanes *= 2;
  return lanes;
}

Kind kind_of(const View& v) {
  if (v.ndim < 2) return Kind::copied;
  const std::int64_t width = width_of(v);
  return units_of(width) <= batch_of(width) ? Kind::held : Kind::shared;
}

// launch_one(matrices) for all tensors of a kind, as many at a time as an argument holds.
template <class LaunchOne> void each_kind(Tensors grads, Tensors out, Kind kind, LaunchOne launch_one) {
  Matrices m;
  m.count = 0;
  m.first[0] = 0;
  const auto flush = [&] {
    if (m.count > 0) launch_one(static_cast<const Matrices&>(m));
    m.count = 0;
  };
  for (std::int64_t i = 0; i < grads.count; ++i) {
    if (kind_of(grads[i]) != kind) continue;
    const View& v = grads[i];
    const std::int64_t width = width_of(v);
    std::int64_t parts = 0, blocks = 0;
    if (kind == Kind::held) {
      const int lanes = lanes_of(width);
      const std::int64_t rows = kThreads / lanes * (held_of(width) / held_by_lane(width, lanes));
      parts = lanes;
      blocks = (v.rows + rows - 1) / rows;
    } else {
      parts = (units_of(width) + batch_of(width) - 1) / batch_of(width);
      parts = parts < kMostParts ? parts : kMostParts;
      blocks = v.rows * parts;
    }
    if (m.count == Matrices::kCapacity || m.first[m.count] + blocks > kMostBlocks) flush();
    const int t = m.count++;
    m.parts[t] = static_cast<std::int32_t>(parts);
    m.rows[t] = v.rows;
    m.width[t] = width;
    m.from[t] = v.data;
    m.to[t] = out[i].data;
    m.dtype[t] = v.dtype;
    m.aligned[t] = (reinterpret_cast<std::uintptr_t>(v.data) | reinterpret_cast<std::uintptr_t>(out[i].data)) % 16 == 0;
    m.first[t + 1] = static_cast<std::int32_t>(m.first[t] + blocks);
  }
  flush();
}

__global__ void copy_blocks(const Table<2> __grid_constant__ table) {
  const Chunk chunk = chunk_of(table, blockIdx.x);
  const void* from = table.data[0][chunk.t];
  void* to = table.data[1][chunk.t];
  const DType type = table.type(0, chunk.t);
  each_pack(chunk, [&](std::int64_t i, Count n) { copy_pack(to, from, type, i, n, chunk.aligned); });
}

}  // namespace

void centralize(const Context& context, Tensors grads, Tensors out) {
  const OnDevice device(context);
  Views from, to;
  for (std::int64_t i = 0; i < grads.count; ++i) {
    if (kind_of(grads[i]) != Kind::copied || out[i].data == grads[i].data) continue;
    from.push_back(grads[i]);
    to.push_back(out[i]);
  }
  each_launch<2>({from, to},
                 [&](const Table<2>& table) { launch(context, copy_blocks, table.blocks(), kThreads, table); });
  each_kind(grads, out, Kind::held,
            [&](const Matrices& m) { launch(context, centralize_teams, m.first[m.count], kThreads, m); });
  each_kind(grads, out, Kind::shared, [&](const Matrices& m) {
    const Workspace<double> partial(context, m.first[m.count]);
    launch(context, sum_parts, m.first[m.count], kThreads, m, partial.get());
    launch(context, subtract_means, m.first[m.count], kThreads, m, partial.get());
  });
}

}  // namespace boost_ext::cuda
