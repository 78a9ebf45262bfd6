// See ops/centralize.h.
//
// A row is read in units: packs of 8 elements where all rows begin at one, else single elements. Which lane has which
// unit follows from the row's length alone, and so do the order of the sum and its bits. Rows that fit into the
// registers of a block are read once: they belong to teams of 1 to 256 lanes. Longer ones are shared by blocks, and
// read again, from the cache, soon after they have been summed; of single elements, by a block alone if they are not
// too long.
#include "multi_tensor.cuh"
#include "ops/centralize.h"

namespace boost_ext::cuda {
namespace {

constexpr int kSingles = 8, kPacks = 4;       // units that a lane holds at most
constexpr std::int64_t kMostAlone = 1 << 16;  // single elements of a row that a block works on alone
constexpr std::int64_t kMostParts = 1024;     // of a row: their sums are four loads a thread
constexpr std::int32_t kBehind = 256;         // parts that are on their way at a time, more or less
constexpr std::int64_t kMostShared = kMostBlocks / 2 - kMostParts - kBehind;  // parts of a launch

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
    Pack p;
    if (kAligned && together)
      p = coming_aligned(pack_at(from, type, i), type, words_of(type)).get();
    else
      p = load_pack(from, type, i, {kPack, together && !kAligned}, kAligned);
#pragma unroll
    for (int j = 0; j < kPack; ++j) x[j] = p.v[j];
  }
  BOOST_EXT_DEVICE void write(const float (&x)[kPack], std::int64_t i, bool together) const {
    Pack p;
#pragma unroll
    for (int j = 0; j < kPack; ++j) p.v[j] = x[j];
    store_pack(to, type, i, {kPack, together, kAligned}, kAligned, p);
  }
};

// How the units of a matrix lie in memory. It is a kernel's, so that aligned packs need no registers of the other ones.
enum class Form { singles, aligned, unaligned };
template <Form kForm> constexpr int kAtOnce = kForm == Form::unaligned ? 3 : 4;  // blocks of a multiprocessor
template <Form kForm> constexpr int kTeamsAtOnce = kForm == Form::unaligned ? 2 : 4;

// body(units of matrix t)
template <Form kForm, class Body> BOOST_EXT_DEVICE void typed(const Matrices& m, int t, Body body) {
  const DType type = m.dtype[t];
  if constexpr (kForm == Form::singles) {
    if (type == DType::f32) return body(Singles<float>(m, t));
    if (type == DType::f16) return body(Singles<__half>(m, t));
    body(Singles<__nv_bfloat16>(m, t));
  } else if constexpr (kForm == Form::unaligned) {
    body(Vectors<DType::other, false>(m, t));
  } else {
    if (type == DType::f32) return body(Vectors<DType::f32, true>(m, t));
    if (type == DType::f16) return body(Vectors<DType::f16, true>(m, t));
    body(Vectors<DType::bf16, true>(m, t));
  }
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

template <Form kForm>
__global__ void __launch_bounds__(kThreads, kTeamsAtOnce<kForm>) centralize_teams(const Matrices __grid_constant__ m) {
  const int t = tensor_of(m.first, 0, m.count, blockIdx.x);
  const std::int64_t block = static_cast<std::int64_t>(blockIdx.x) - m.first[t];
  typed<kForm>(m, t, [&](const auto& units) {
    const int held = held_by_lane(m.width[t], m.parts[t]);
    if (held == 1) return centralize_rows<1>(m, t, block, units);
    if (held == 2) return centralize_rows<2>(m, t, block, units);
    if (held == 4) return centralize_rows<4>(m, t, block, units);
    if constexpr (std::decay_t<decltype(units)>::kHeld == 8) centralize_rows<8>(m, t, block, units);
  });
}

// body(units, first element, number of units) for every batch of a block's part of a row.
template <Form kForm, class Body>
BOOST_EXT_DEVICE void each_batch(const Matrices& m, int t, std::int64_t block, Body body) {
  const std::int64_t width = m.width[t], batch = batch_of(width), size = in_packs(width) ? kPack : 1;
  const std::int64_t row = block / m.parts[t], part = block % m.parts[t];
  typed<kForm>(m, t, [&](const auto& units) {
    for (std::int64_t at = part * batch; at < units_of(width); at += m.parts[t] * batch) {
      const std::int64_t rest = units_of(width) - at;
      body(units, row * width + at * size, rest < batch ? rest : batch);
    }
  });
}
template <Form kForm> BOOST_EXT_DEVICE double sum_part(const Matrices& m, int t, std::int64_t block) {
  double sum = 0;
  each_batch<kForm>(m, t, block, [&](const auto& units, std::int64_t begin, std::int64_t count) {
    using Units = std::decay_t<decltype(units)>;
    Held<Units, Units::kHeld> held;
    held.read(units, begin, static_cast<int>(threadIdx.x), kThreads, count);
    sum += held.sum();
  });
  return sum_lanes(sum, kThreads);
}
// sum() of the row is asked for once, when the first batch is on its way.
template <Form kForm, class Sum> BOOST_EXT_DEVICE void subtract(const Matrices& m, int t, std::int64_t block, Sum sum) {
  bool known = false;
  float mean = 0;
  each_batch<kForm>(m, t, block, [&](const auto& units, std::int64_t begin, std::int64_t count) {
    using Units = std::decay_t<decltype(units)>;
    Held<Units, Units::kHeld> held;
    held.read(units, begin, static_cast<int>(threadIdx.x), kThreads, count);
    if (!known) mean = static_cast<float>(sum() / static_cast<double>(m.width[t]));
    known = true;
    held.write(units, begin, static_cast<int>(threadIdx.x), kThreads, count, mean);
  });
}

__global__ void __launch_bounds__(kThreads, kAtOnce<Form::singles>)
    centralize_alone(const Matrices __grid_constant__ m) {
  const int t = tensor_of(m.first, 0, m.count, blockIdx.x);
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) - m.first[t];
  const double sum = sum_part<Form::singles>(m, t, row);
  subtract<Form::singles>(m, t, row, [&] { return sum; });
}

// What no sum is: all bits are ones, but of a nan that is computed, or comes from a narrower type, the last ones are
// not.
constexpr long long kNoSum = -1;

// Blocks draw tickets: by turns one sums a part, and one takes the mean from the part that is `behind` parts before,
// while it is in the cache. A block waits only for the sums of tickets before its own, whose blocks have begun.
template <Form kForm>
__global__ void __launch_bounds__(kThreads, kAtOnce<kForm>)
    centralize_shared(const Matrices __grid_constant__ m, std::int32_t behind, long long* partial, unsigned* tickets) {
  __shared__ unsigned drawn;
  const int lane = static_cast<int>(threadIdx.x);
  if (lane == 0) drawn = atomicAdd(tickets, 1U);
  __syncthreads();
  const bool subtracts = drawn % 2 != 0;
  const std::int64_t b = static_cast<std::int64_t>(drawn / 2) - (subtracts ? behind : 0);
  if (b < 0 || b >= m.first[m.count]) return;
  const int t = tensor_of(m.first, 0, m.count, b);
  const std::int64_t block = b - m.first[t];
  if (!subtracts) {
    const double sum = sum_part<kForm>(m, t, block);
    if (lane == 0) *static_cast<volatile long long*>(partial + b) = __double_as_longlong(sum);
    return;
  }
  subtract<kForm>(m, t, block, [&] {
    const int parts = m.parts[t];
    const volatile long long* const sums = partial + (b - block % parts);
    double sum = 0;
    for (int p = lane; p < parts; p += kThreads) {
      long long bits = kNoSum;
      while (bits == kNoSum) bits = sums[p];
      sum += __longlong_as_double(bits);
    }
    return sum_lanes(sum, kThreads);
  });
}

enum class Kind { copied, held, alone, shared };

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
  if (units_of(width) <= batch_of(width)) return Kind::held;
  return !in_packs(width) && width <= kMostAlone ? Kind::alone : Kind::shared;
}

Form form_of(const View& from, const View& to) {
  if (!in_packs(width_of(from))) return Form::singles;
  const auto addresses = reinterpret_cast<std::uintptr_t>(from.data) | reinterpret_cast<std::uintptr_t>(to.data);
  return addresses % 16 == 0 ? Form::aligned : Form::unaligned;
}

// launch_one(matrices) for all tensors of a kind and form, as many at a time as an argument holds.
template <class LaunchOne> void each_kind(Tensors grads, Tensors out, Kind kind, Form form, LaunchOne launch_one) {
  Matrices m;
  m.count = 0;
  m.first[0] = 0;
  const auto flush = [&] {
    if (m.count > 0) launch_one(static_cast<const Matrices&>(m));
    m.count = 0;
  };
  for (std::int64_t i = 0; i < grads.count; ++i) {
    if (kind_of(grads[i]) != kind || form_of(grads[i], out[i]) != form) continue;
    const View& v = grads[i];
    const std::int64_t width = width_of(v);
    std::int64_t parts = 1, blocks = v.rows;
    if (kind == Kind::held) {
      const int lanes = lanes_of(width);
      const std::int64_t rows = kThreads / lanes * (held_of(width) / held_by_lane(width, lanes));
      parts = lanes;
      blocks = (v.rows + rows - 1) / rows;
    } else if (kind == Kind::shared) {
      parts = (units_of(width) + batch_of(width) - 1) / batch_of(width);
      parts = parts < kMostParts ? parts : kMostParts;
      blocks = v.rows * parts;
    }
    if (m.count == Matrices::kCapacity || m.first[m.count] + blocks > kMostShared) flush();
    const int t = m.count++;
    m.parts[t] = static_cast<std::int32_t>(parts);
    m.rows[t] = v.rows;
    m.width[t] = width;
    m.from[t] = v.data;
    m.to[t] = out[i].data;
    m.dtype[t] = v.dtype;
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

template <Form kForm> void centralize_form(const Context& context, Tensors grads, Tensors out) {
  each_kind(grads, out, Kind::held, kForm,
            [&](const Matrices& m) { launch(context, centralize_teams<kForm>, m.first[m.count], kThreads, m); });
  each_kind(grads, out, Kind::shared, kForm, [&](const Matrices& m) {
    const std::int64_t parts = m.first[m.count];
    std::int32_t behind = 0;
    for (int t = 0; t < m.count; ++t) behind = m.parts[t] > behind ? m.parts[t] : behind;
    behind += kBehind;
    const Workspace<long long> partial(context, parts);
    const Workspace<unsigned> tickets(context, 1);
    const auto bytes = static_cast<std::size_t>(parts) * sizeof(long long);
    check(cudaMemsetAsync(partial.get(), 0xff, bytes, stream_of(context)), "centralize");
    check(cudaMemsetAsync(tickets.get(), 0, sizeof(unsigned), stream_of(context)), "centralize");
    launch(context, centralize_shared<kForm>, 2 * (parts + behind), kThreads, m, behind, partial.get(), tickets.get());
  });
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
  centralize_form<Form::aligned>(context, grads, out);
  centralize_form<Form::unaligned>(context, grads, out);
  centralize_form<Form::singles>(context, grads, out);
  each_kind(grads, out, Kind::alone, Form::singles,
            [&](const Matrices& m) { launch(context, centralize_alone, m.first[m.count], kThreads, m); });
}

}  // namespace boost_ext::cuda
