// See ops/damped_inverse.h. A block of threads inverts a matrix in tiles of 32 by 32: M = U^T U, W = U^-T,
// M^-1 = W^T W. All three are sums of products A^T B of tiles. U lies in the upper tiles of the work memory, W in the
// lower ones and those of the diagonal, and the inverse over both.
//
// A large matrix is inverted by all of the device, panel by panel of 128 rows: a block of threads finds W_kk of the
// panel's square as above, and cuBLAS multiplies, in float64,
//
//   [U_k W_k] <- W_kk [A_k I_k],  [A I]_below <- [A I]_below - U_k^T [U_k W_k],  and in the end M^-1 = sum of W_k^T
//   W_k.
#include "blas.cuh"
#include "jobs.cuh"
#include "ops/damped_inverse.h"

namespace boost_ext::cuda {
namespace {

constexpr int kTile = 32;
constexpr int kLoads = kTile * kTile / kThreads;
constexpr double kMostFloat = 3.4028234e38;
constexpr std::int64_t kMostWork = std::int64_t{1} << 27;  // elements of work memory at a time, and at least a matrix

constexpr std::int64_t kPanel = 128;

struct Matrix {
  const double* from;
  float* to;
  double* work;
  std::int64_t extent, size;  // extent 0: a diagonal of `size` elements
  double factor, damping;
  std::int64_t stride;  // of the rows
};

BOOST_EXT_DEVICE bool fits(double value) { return value <= kMostFloat && value >= -kMostFloat; }

using Columns = double[kTile][kTile];

struct Shared {
  alignas(16) Columns a, b;
};

// The 2 by 2 elements of this thread: body(i, j, row, column).
template <class Body> BOOST_EXT_DEVICE void each_of_tile(Body body) {
  const int row = static_cast<int>(threadIdx.x) / (kTile / 2) * 2, column = static_cast<int>(threadIdx.x) % (kTile / 2);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int j = 0; j < 2; ++j) body(i, j, row + i, 2 * column + j);
  }
}

BOOST_EXT_DEVICE void multiply(const Shared& tiles, double (&sums)[2][2]) {
  const int row = static_cast<int>(threadIdx.x) / (kTile / 2) * 2;
  const int column = static_cast<int>(threadIdx.x) % (kTile / 2) * 2;
#pragma unroll 4
  for (int k = 0; k < kTile; ++k) {
    const double2 l = *reinterpret_cast<const double2*>(&tiles.a[k][row]);
    const double2 r = *reinterpret_cast<const double2*>(&tiles.b[k][column]);
    sums[0][0] = fma(l.x, r.x, sums[0][0]);
    sums[0][1] = fma(l.x, r.y, sums[0][1]);
    sums[1][0] = fma(l.y, r.x, sums[1][0]);
    sums[1][1] = fma(l.y, r.y, sums[1][1]);
  }
}

// sums += A^T B, where A and B are `rows` rows of 32 columns in a matrix of `stride` columns.
BOOST_EXT_DEVICE void add_products(Shared& tiles, const double* a, const double* b, std::int64_t stride,
                                   std::int64_t rows, double (&sums)[2][2]) {
  double next_a[kLoads], next_b[kLoads];
  const auto bring = [&](std::int64_t k) {
#pragma unroll
    for (int l = 0; l < kLoads; ++l) {
      const int e = static_cast<int>(threadIdx.x) + l * kThreads;
      const std::int64_t at = (k + e / kTile) * stride + e % kTile;
      next_a[l] = a[at];
      next_b[l] = b[at];
    }
  };
  if (rows > 0) bring(0);
  for (std::int64_t k = 0; k < rows; k += kTile) {
    __syncthreads();
#pragma unroll
    for (int l = 0; l < kLoads; ++l) {
      const int e = static_cast<int>(threadIdx.x) + l * kThreads;
      tiles.a[e / kTile][e % kTile] = next_a[l];
      tiles.b[e / kTile][e % kTile] = next_b[l];
    }
    __syncthreads();
    if (k + kTile < rows) bring(k + kTile);  // while the others are multiplied
    multiply(tiles, sums);
  }
}

// The rows of [S | I] by Cholesky's method, in a and b: b becomes U^-T, lower. Whether S is positive definite.
BOOST_EXT_DEVICE bool factor_tile(Shared& tiles) {
  bool good = true;
  for (int c = 0; c < kTile; ++c) {
    __syncthreads();
    const double pivot = tiles.a[c][c];
    good = good && pivot > 0 && pivot < HUGE_VAL && fits(1 / pivot);
    const double inverse = 1 / sqrt(pivot);
    __syncthreads();  // all have read the pivot
    if (threadIdx.x < 2 * kTile) {
      double& x = (threadIdx.x < kTile ? tiles.a : tiles.b)[c][threadIdx.x % kTile];
      x *= inverse;
    }
    __syncthreads();
    for (int e = static_cast<int>(threadIdx.x); e < kTile * kTile; e += kThreads) {
      const int i = e / kTile, j = e % kTile;
      if (i <= c) continue;
      const double by = tiles.a[c][i];
      if (j >= i)
        tiles.a[i][j] = fma(-by, tiles.a[c][j], tiles.a[i][j]);
      else if (j <= c)
        tiles.b[i][j] = fma(-by, tiles.b[c][j], tiles.b[i][j]);
    }
  }
  __syncthreads();
  return good;
}

// Element (i, j) of the matrix, i <= j; beyond its end the identity.
BOOST_EXT_DEVICE double element(const Matrix& m, std::int64_t i, std::int64_t j) {
  if (j >= m.extent) return i == j ? 1 : 0;
  const double x = m.factor * m.from[i * m.stride + j];
  return i == j ? x + m.damping : x;
}

// U, and W on the diagonal: tiles row by row.
BOOST_EXT_DEVICE bool factorize(const Matrix& m, double* work, std::int64_t n, Shared& tiles) {
  for (std::int64_t k = 0; k < n; k += kTile) {
    double* const row = work + k * n;
    double sums[2][2] = {};
    add_products(tiles, work + k, work + k, n, k, sums);
    __syncthreads();
    each_of_tile([&](int i, int j, int r, int c) {
      tiles.a[r][c] = r <= c ? element(m, k + r, k + c) - sums[i][j] : 0;
      tiles.b[r][c] = r == c ? 1 : 0;
    });
    if (!factor_tile(tiles)) return false;  // all threads have seen the same pivots
    each_of_tile([&](int, int, int r, int c) { row[r * n + k + c] = tiles.b[r][c]; });
    for (std::int64_t j = k + kTile; j < n; j += kTile) {
      double rest[2][2] = {}, solved[2][2] = {};
      add_products(tiles, work + k, work + j, n, k, rest);
      __syncthreads();
      each_of_tile([&](int p, int q, int r, int c) {
        tiles.b[r][c] = element(m, k + r, j + c) - rest[p][q];
        tiles.a[c][r] = row[r * n + k + c];  // W's transpose, which this thread itself has written
      });
      __syncthreads();
      multiply(tiles, solved);
      each_of_tile([&](int p, int q, int r, int c) { row[r * n + j + c] = solved[p][q]; });
    }
    __syncthreads();
  }
  return true;
}

// W below the diagonal: W_kj = -W_kk sum over i of U_ik^T W_ij, j <= i < k.
BOOST_EXT_DEVICE void invert_factor(double* work, std::int64_t n, Shared& tiles) {
  for (std::int64_t k = kTile; k < n; k += kTile) {
    double* const row = work + k * n;
    for (std::int64_t j = 0; j < k; j += kTile) {
      double sums[2][2] = {}, solved[2][2] = {};
      add_products(tiles, work + j * n + k, work + j * n + j, n, k - j, sums);
      __syncthreads();
      each_of_tile([&](int p, int q, int r, int c) {
        tiles.b[r][c] = -sums[p][q];
        tiles.a[c][r] = row[r * n + k + c];
      });
      __syncthreads();
      multiply(tiles, solved);
      each_of_tile([&](int p, int q, int r, int c) { row[r * n + j + c] = solved[p][q]; });
    }
    __syncthreads();
  }
}

// W^T W over U, tile by tile; W_jj goes last of its column, when nobody needs it any more. Whether all of it fits.
BOOST_EXT_DEVICE bool square(double* work, std::int64_t n, std::int64_t extent, Shared& tiles) {
  bool good = true;
  for (std::int64_t j = 0; j < n; j += kTile) {
    for (std::int64_t i = 0; i <= j; i += kTile) {
      double sums[2][2] = {};
      add_products(tiles, work + j * n + i, work + j * n + j, n, n - j, sums);
      __syncthreads();
      each_of_tile([&](int p, int q, int r, int c) {
        work[(i + r) * n + j + c] = sums[p][q];
        if (i + r < extent && j + c < extent) good = good && fits(sums[p][q]);
      });
    }
  }
  return __syncthreads_and(good) != 0;
}

BOOST_EXT_DEVICE bool invert(const Matrix& m, std::int64_t index, double* work, Shared& tiles) {
  const std::int64_t n = (m.extent + kTile - 1) / kTile * kTile;
  if (!factorize(m, work, n, tiles)) return false;
  invert_factor(work, n, tiles);
  if (!square(work, n, m.extent, tiles)) return false;
  float* const to = m.to + index * m.extent * m.extent;
  for (std::int64_t e = threadIdx.x; e < m.extent * m.extent; e += kThreads) {
    const std::int64_t i = quotient(e, m.extent), j = e - i * m.extent;
    to[e] = static_cast<float>(work[i <= j ? i * n + j : j * n + i]);
  }
  return true;
}

BOOST_EXT_DEVICE bool invert_diagonal(const Matrix& m) {
  bool good = true;
  for (std::int64_t i = threadIdx.x; i < m.size; i += kThreads) {
    const double value = m.factor * m.from[i] + m.damping;
    good = good && value > 0 && fits(value) && fits(1 / value);
  }
  if (__syncthreads_and(good) == 0) return false;
  for (std::int64_t i = threadIdx.x; i < m.size; i += kThreads) {
    m.to[i] = static_cast<float>(1 / (m.factor * m.from[i] + m.damping));
  }
  return true;
}

__global__ void __launch_bounds__(kThreads, 2) invert_all(const Jobs<Matrix> __grid_constant__ jobs, float* inverted) {
  __shared__ Shared tiles;
  const int which = job_of(jobs, blockIdx.x);
  Matrix m = jobs.job[which];
  const std::int64_t index = blockIdx.x - jobs.first[which], padded = (m.extent + kTile - 1) / kTile * kTile;
  m.from += index * m.extent * m.extent;
  const bool good = m.extent > 0 ? invert(m, index, m.work + index * padded * padded, tiles) : invert_diagonal(m);
  if (!good && threadIdx.x == 0) *inverted = 0;  // whoever writes it, writes the same
}

__global__ void set_to_one(float* number) { *number = 1; }

// A large matrix and its memory, in rows: those of A and I together, panels of U and W, and the last W_kk.
struct Large {
  Matrix m;
  std::int64_t extent;  // with the padding: a multiple of kTile
  double *both, *panels, *square;
  float* good;
};

std::int64_t doubles_of(std::int64_t extent) { return 3 * extent * extent + kPanel * kPanel; }
std::int64_t chunks_of(const Large& l) { return blocks_of(l.extent * l.extent); }
std::int64_t one_of(const Large&) { return 1; }

// body(i, j) for the elements of this block of threads.
template <class Body> BOOST_EXT_DEVICE void each_element(const Jobs<Large>& jobs, int which, Body body) {
  const std::int64_t extent = jobs.job[which].extent, begin = (blockIdx.x - jobs.first[which]) * kChunk;
  const std::int64_t end = begin + kChunk < extent * extent ? begin + kChunk : extent * extent;
  for (std::int64_t e = begin + threadIdx.x; e < end; e += kThreads) {
    const std::int64_t i = quotient(e, extent);
    body(i, e - i * extent);
  }
}

// What is below A's diagonal is not read.
__global__ void bring_large(const Jobs<Large> __grid_constant__ jobs) {
  const int which = job_of(jobs, blockIdx.x);
  const Large& l = jobs.job[which];
  if (blockIdx.x == jobs.first[which] && threadIdx.x == 0) *l.good = 1;
  each_element(jobs, which, [&](std::int64_t i, std::int64_t j) {
    double* const row = l.both + i * 2 * l.extent;
    row[j] = i <= j ? element(l.m, i, j) : 0;
    row[l.extent + j] = i == j ? 1 : 0;
  });
}

// W_kk of the rows from `first` on, lower, with zeros above. Of a matrix that has no inverse nothing but zeros.
__global__ void __launch_bounds__(kThreads, 2)
    factor_panel(const Jobs<Large> __grid_constant__ jobs, std::int64_t first, std::int64_t rows, float* inverted) {
  __shared__ Shared tiles;
  const Large& l = jobs.job[job_of(jobs, blockIdx.x)];
  const Matrix m{l.both + first * 2 * l.extent + first, nullptr, nullptr, rows, rows * rows, 1, 0, 2 * l.extent};
  const bool good = factorize(m, l.square, rows, tiles);
  if (good) invert_factor(l.square, rows, tiles);
  if (!good && threadIdx.x == 0) *l.good = *inverted = 0;
  __syncthreads();
  for (std::int64_t e = threadIdx.x; e < rows * rows; e += kThreads) {
    const std::int64_t i = quotient(e, rows), j = e - i * rows;
    if (i < j || !good) l.square[e] = 0;
  }
}

__global__ void look_at_large(const Jobs<Large> __grid_constant__ jobs, float* inverted) {
  const int which = job_of(jobs, blockIdx.x);
  const Large& l = jobs.job[which];
  bool good = true;
  each_element(jobs, which, [&](std::int64_t i, std::int64_t j) {
    if (i <= j && j < l.m.extent) good = good && fits(l.both[i * 2 * l.extent + j]);
  });
  if (!good) *l.good = *inverted = 0;  // whoever writes it, writes the same
}

__global__ void take_large(const Jobs<Large> __grid_constant__ jobs) {
  const int which = job_of(jobs, blockIdx.x);
  const Large& l = jobs.job[which];
  if (*l.good == 0) return;
  each_element(jobs, which, [&](std::int64_t i, std::int64_t j) {
    if (i >= l.m.extent || j >= l.m.extent) return;
    const double value = l.both[i <= j ? i * 2 * l.extent + j : j * 2 * l.extent + i];
    l.m.to[i * l.m.extent + j] = static_cast<float>(value);
  });
}

// [A I] to panels of [U W], and then the inverse in the place of A. The matrices have one extent and lie `next` apart.
void eliminate(const Context& context, const std::vector<Large>& all, std::int64_t next, float* inverted) {
  const Blas blas(context);
  const Large& l = all[0];
  const std::int64_t n = l.extent;
  const auto rows_of = [&](std::int64_t k) { return n - k < kPanel ? n - k : kPanel; };
  Gemm<double> g{};
  g.count = static_cast<std::int64_t>(all.size());
  g.columns = n;
  for (std::int64_t k = 0; k < n; k += kPanel) {
    const std::int64_t rows = rows_of(k);
    each_launch_of(all, one_of, [&](const Jobs<Large>& jobs) {
      launch(context, factor_panel, jobs.blocks(), kThreads, jobs, k, rows, inverted);
    });
    // What is not zero of U_k and W_k without U_kk: n columns of [U W].
    double *const from = l.both + k * 2 * n + k + rows, *const panel = l.panels + k * n;
    g.inner = rows;
    g.rows = rows, g.a = {l.square, rows, next}, g.b = {from, 2 * n, next}, g.c = {panel, n, next};
    g.factor = 1, g.kept = 0;
    blas.multiply(g);
    g.rows = n - k - rows;
    if (g.rows == 0) break;
    g.a = {panel, n, next, true}, g.b = {panel, n, next}, g.c = {from + rows * 2 * n, 2 * n, next};
    g.factor = -1, g.kept = 1;
    blas.multiply(g);
  }
  // The last panel has all columns.
  g.factor = 1, g.kept = 0;
  for (std::int64_t k = (n - 1) / kPanel * kPanel; k >= 0; k -= kPanel) {
    g.inner = rows_of(k);
    g.rows = g.columns = k + g.inner;
    const double* const w = l.panels + k * n + n - g.columns;
    g.a = {w, n, next, true}, g.b = {w, n, next}, g.c = {l.both, 2 * n, next};
    blas.multiply(g);
    g.kept = 1;
  }
}

// Matrices of one extent.
void invert_large(const Context& context, const std::vector<Matrix>& matrices, float* inverted) {
  const auto count = static_cast<std::int64_t>(matrices.size());
  const std::int64_t n = quotient_up(matrices[0].extent, kTile) * kTile, next = doubles_of(n);
  const Workspace<double> memory(context, count * next);
  const Workspace<float> good(context, count);
  std::vector<Large> all;
  for (std::int64_t i = 0; i < count; ++i) {
    double* const at = memory.get() + i * next;
    all.push_back({matrices[static_cast<std::size_t>(i)], n, at, at + 2 * n * n, at + 3 * n * n, good.get() + i});
  }
  each_launch_of(all, chunks_of,
                 [&](const Jobs<Large>& jobs) { launch(context, bring_large, jobs.blocks(), kThreads, jobs); });
  eliminate(context, all, next, inverted);
  each_launch_of(all, chunks_of, [&](const Jobs<Large>& jobs) {
    launch(context, look_at_large, jobs.blocks(), kThreads, jobs, inverted);
  });
  each_launch_of(all, chunks_of,
                 [&](const Jobs<Large>& jobs) { launch(context, take_large, jobs.blocks(), kThreads, jobs); });
}

// As many of one extent at a time as there is memory for.
void invert_each_large(const Context& context, std::vector<Matrix> all, float* inverted) {
  while (!all.empty()) {
    std::vector<Matrix> some, others;
    for (const Matrix& m : all) {
      const std::int64_t doubles = (static_cast<std::int64_t>(some.size()) + 1) * doubles_of(m.extent);
      const bool joins = some.empty() || (m.extent == some[0].extent && doubles <= kMostWork);
      (joins ? some : others).push_back(m);
    }
    invert_large(context, some, inverted);
    all.swap(others);
  }
}

std::int64_t blocks_of_matrix(const Matrix& m) { return m.extent > 0 ? m.size / (m.extent * m.extent) : 1; }
std::int64_t work_of(const Matrix& m) {
  const std::int64_t padded = quotient_up(m.extent, kTile) * kTile;
  return padded * padded;
}

}  // namespace

void damped_inverse(const Context& context, Tensors matrices, const std::int64_t* extent, const double* factor,
                    const double* damping, Tensors out, float* inverted) {
  const OnDevice device(context);
  launch(context, set_to_one, 1, 1, inverted);
  std::vector<Matrix> some, large;
  std::int64_t work = 0;
  const auto launch_some = [&] {
    const Workspace<double> memory(context, work);
    std::int64_t at = 0;
    for (Matrix& m : some) {
      m.work = memory.get() + at;
      at += m.extent > 0 ? blocks_of_matrix(m) * work_of(m) : 0;
    }
    each_launch_of(some, blocks_of_matrix, [&](const Jobs<Matrix>& jobs) {
      launch(context, invert_all, jobs.blocks(), kThreads, jobs, inverted);
    });
    some.clear();
    work = 0;
  };
  for (std::int64_t t = 0; t < matrices.count; ++t) {
    Matrix m{static_cast<const double*>(matrices[t].data),
             static_cast<float*>(out[t].data),
             nullptr,
             extent[t],
             matrices[t].size,
             factor[t],
             damping[t],
             extent[t]};
    if (m.size == 0) continue;
    if (is_for_blas(m.extent, m.extent)) {
      for (std::int64_t i = 0; i < blocks_of_matrix(m); ++i) {
        large.push_back(m);
        large.back().from += i * m.extent * m.extent, large.back().to += i * m.extent * m.extent;
      }
      continue;
    }
    const std::int64_t one = m.extent > 0 ? work_of(m) : 0, all = blocks_of_matrix(m);
    for (std::int64_t done = 0; done < all;) {
      if (work > 0 && work + one > kMostWork) launch_some();
      const std::int64_t fit = one > 0 ? (kMostWork - work) / one : all;
      const std::int64_t count = fit < 1 ? 1 : fit < all - done ? fit : all - done;
      Matrix part = m;
      part.from += done * m.extent * m.extent;
      part.to += done * m.extent * m.extent;
      if (m.extent > 0) part.size = count * m.extent * m.extent;
      some.push_back(part);
      work += count * one;
      done += count;
    }
  }
  launch_some();
  invert_each_large(context, std::move(large), inverted);
}

}  // namespace boost_ext::cuda
