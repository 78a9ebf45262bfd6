// See ops/orthogonalize.h. Each product of the iteration is one launch for all matrices, in tiles; of a symmetric one
// the tiles below the diagonal are copies of those above. Large matrices are multiplied by cuBLAS, those of equal shape
// in one call; their symmetric products are symmetric but for rounding, which the iteration bears.
#include "blas.cuh"
#include "jobs.cuh"
#include "ops/orthogonalize.h"
#include "tile_product.cuh"

namespace boost_ext::cuda {
namespace {

constexpr std::int64_t kMostWork = std::int64_t{1} << 28;  // elements of work memory at a time, and at least a matrix

// A matrix of the caller's, the first X of its iteration, and the numbers between.
struct Matrix {
  const void* from;
  float* to;
  float *x, *result;           // least by most elements, and where the next X goes
  float *a, *p, *q, *next;     // least by least elements
  double* sums;                // of squares, one a chunk, then their sum
  std::int64_t rows, columns;  // of the caller's
  std::int64_t least, most;    // rows and columns of X
  double eps;
  DType dtype;
  bool on_square() const { return most >= 2 * least; }
  bool has_shape_of(const Matrix& m) const { return least == m.least && most == m.most; }
};

// out = factor * a b + by * add + unit * I; b is transposed where b_rows is false. Symmetric: rows is columns.
struct Product {
  const float *a, *b, *add;
  float* out;
  std::int64_t rows, inner, columns;
  float factor, by, unit;
  bool b_rows, symmetric;
};

std::int64_t chunks_of(const Matrix& m) { return blocks_of(m.rows * m.columns); }
std::int64_t one_of(const Matrix&) { return 1; }
__host__ __device__ std::int64_t tiles(std::int64_t n) { return (n + kTile - 1) / kTile; }
std::int64_t tiles_of(const Product& p) {
  return p.symmetric ? tiles(p.rows) * (tiles(p.rows) + 1) / 2 : tiles(p.rows) * tiles(p.columns);
}

__global__ void sum_chunks(const Jobs<Matrix> __grid_constant__ jobs) {
  const int which = job_of(jobs, blockIdx.x);
  const Matrix& m = jobs.job[which];
  const std::int64_t chunk = blockIdx.x - jobs.first[which], begin = chunk * kChunk, size = m.rows * m.columns;
  const std::int64_t count = begin + kChunk < size ? kChunk : size - begin;
  const double sum = sum_in_block(count, [&](std::int64_t j) {
    const double x = load(m.from, m.dtype, begin + j);
    return x * x;
  });
  if (threadIdx.x == 0) m.sums[chunk] = sum;
}

__global__ void add_chunks(const Jobs<Matrix> __grid_constant__ jobs) {
  const Matrix& m = jobs.job[job_of(jobs, blockIdx.x)];
  const std::int64_t count = (m.rows * m.columns + kChunk - 1) / kChunk;
  const double sum = sum_in_block(count, [&](std::int64_t j) { return m.sums[j]; });
  if (threadIdx.x == 0) m.sums[0] = sum;
}

// X from the caller's matrix, or the caller's result from X: element i of the caller's.
template <class Each> BOOST_EXT_DEVICE void each_element(const Jobs<Matrix>& jobs, Each each) {
  const int which = job_of(jobs, blockIdx.x);
  const Matrix& m = jobs.job[which];
  each_of_chunk(jobs, which, m.rows * m.columns, [&](std::int64_t i) {
    const std::int64_t row = quotient(i, m.columns), column = i - row * m.columns;
    each(m, i, m.rows > m.columns ? column * m.most + row : i);
  });
}
__global__ void bring(const Jobs<Matrix> __grid_constant__ jobs) {
  each_element(jobs, [](const Matrix& m, std::int64_t i, std::int64_t at) {
    m.x[at] = static_cast<float>(1 / (sqrt(m.sums[0]) + m.eps)) * load(m.from, m.dtype, i);
  });
}
__global__ void take(const Jobs<Matrix> __grid_constant__ jobs) {
  each_element(jobs, [](const Matrix& m, std::int64_t i, std::int64_t at) { m.to[i] = m.x[at]; });
}

// Row and column of a tile.
struct Place {
  std::int64_t row, column;
};
BOOST_EXT_DEVICE Place place_of(const Product& p, std::int64_t tile) {
  if (!p.symmetric) {
    const std::int64_t row = quotient(tile, tiles(p.columns));
    return {row * kTile, (tile - row * tiles(p.columns)) * kTile};
  }
  std::int64_t rest = tile, row = 0;
  while (rest >= tiles(p.rows) - row) {
    rest -= tiles(p.rows) - row;
    ++row;
  }
  return {row * kTile, (row + rest) * kTile};
}

__global__ void __launch_bounds__(kThreads, 2) multiply_all(const Jobs<Product> __grid_constant__ jobs) {
  __shared__ Tile a, b;
  const int which = job_of(jobs, blockIdx.x);
  const Product& p = jobs.job[which];
  const Place at = place_of(p, blockIdx.x - jobs.first[which]);
  float next_a[kLoads], next_b[kLoads];
  // Neighbours in memory are neighbours of the depth in a, and in b if it is transposed.
  const auto depth_of = [&](int e, bool rows) { return rows ? e / kTile : e % kDepth; };
  const auto place_in = [&](int e, bool rows) { return rows ? e % kTile : e / kDepth; };
  const auto bring_tiles = [&](std::int64_t k) {
#pragma unroll
    for (int l = 0; l < kLoads; ++l) {
      const int e = static_cast<int>(threadIdx.x) + l * kThreads;
      const std::int64_t i = at.row + place_in(e, false), ka = k + depth_of(e, false);
      const std::int64_t j = at.column + place_in(e, p.b_rows), kb = k + depth_of(e, p.b_rows);
      next_a[l] = i < p.rows && ka < p.inner ? p.a[i * p.inner + ka] : 0;
      next_b[l] = j < p.columns && kb < p.inner ? p.b[p.b_rows ? kb * p.columns + j : j * p.inner + kb] : 0;
    }
  };
  float sums[kEach][kEach] = {}, total[kEach][kEach] = {};
  bring_tiles(0);
  for (std::int64_t k = 0; k < p.inner; k += kDepth) {
    __syncthreads();
#pragma unroll
    for (int l = 0; l < kLoads; ++l) {
      const int e = static_cast<int>(threadIdx.x) + l * kThreads;
      a.at[depth_of(e, false)][place_in(e, false)] = next_a[l];
      b.at[depth_of(e, p.b_rows)][place_in(e, p.b_rows)] = next_b[l];
    }
    __syncthreads();
    if (k + kDepth < p.inner) bring_tiles(k + kDepth);  // while the others are multiplied
    multiply(a, b, sums);
    if ((k + kDepth) % kSlab == 0) carry(total, sums);
  }
  carry(total, sums);
  each_of_tile([&](int i, int j, int m, int n) {
    const std::int64_t row = at.row + m, column = at.column + n;
    if (row >= p.rows || column >= p.columns || (p.symmetric && row > column)) return;
    float value = p.factor * total[i][j];
    if (p.add != nullptr) value = p.by * p.add[row * p.columns + column] + value;
    if (row == column) value += p.unit;
    p.out[row * p.columns + column] = value;
    if (p.symmetric) p.out[column * p.columns + row] = value;
  });
}

void multiply_each(const Context& context, const std::vector<Product>& products) {
  each_launch_of(products, tiles_of,
                 [&](const Jobs<Product>& jobs) { launch(context, multiply_all, jobs.blocks(), kThreads, jobs); });
}

// What a product is added to, in its place.
__global__ void prepare(const Jobs<Product> __grid_constant__ jobs) {
  const int which = job_of(jobs, blockIdx.x);
  const Product& p = jobs.job[which];
  each_of_chunk(jobs, which, p.rows * p.columns, [&](std::int64_t i) {
    const float value = p.add != nullptr ? p.by * p.add[i] : 0;
    const bool on_diagonal = quotient(i, p.columns + 1) * (p.columns + 1) == i;
    p.out[i] = on_diagonal ? value + p.unit : value;
  });
}

// The same product of all, by the same factor; matrices of equal shape lie equally far from one another.
void multiply_each(const Context& context, const Blas& blas, const std::vector<Product>& products) {
  const auto is_sum = [](const Product& p) { return p.add != nullptr || p.unit != 0; };
  const auto blocks_of_sum = [&](const Product& p) { return is_sum(p) ? blocks_of(p.rows * p.columns) : 0; };
  each_launch_of(products, blocks_of_sum,
                 [&](const Jobs<Product>& jobs) { launch(context, prepare, jobs.blocks(), kThreads, jobs); });
  for (std::size_t i = 0, end = 0; i < products.size(); i = end) {
    const Product& p = products[i];
    const Product* next = nullptr;
    for (end = i + 1; end < products.size(); ++end) {
      const Product &q = products[end], &last = products[end - 1];
      if (q.rows != p.rows || q.inner != p.inner || q.columns != p.columns || is_sum(q) != is_sum(p)) break;
      if (next == nullptr) next = &q;
      if (q.a - last.a != next->a - p.a || q.b - last.b != next->b - p.b || q.out - last.out != next->out - p.out)
        break;
    }
    Gemm<float> g{p.rows, p.inner, p.columns, {p.a, p.inner, 0}, {}, {p.out, p.columns, 0}};
    g.b = {p.b, p.b_rows ? p.columns : p.inner, 0, !p.b_rows};
    g.count = static_cast<std::int64_t>(end - i);
    if (g.count > 1) g.a.next = next->a - p.a, g.b.next = next->b - p.b, g.c.next = next->out - p.out;
    g.factor = p.factor;
    g.kept = is_sum(p) ? 1 : 0;
    blas.multiply(g);
  }
}

Product symmetric(const float* a, const float* b, std::int64_t n, std::int64_t inner, float* out) {
  return {a, b, nullptr, out, n, inner, n, 1, 0, 0, true, true};
}

void swap(float*& a, float*& b) {
  float* const was = a;
  a = b;
  b = was;
}

// By cuBLAS, if it is given. Then a I is always in the polynomial: a X would have to be written before the product.
void iterate(const Context& context, const Blas* blas, std::vector<Matrix>& all, std::int64_t steps) {
  using Polynomial = NewtonSchulz;
  std::vector<Product> products;
  // One product of each matrix that has it.
  const auto launch_each = [&](auto&& product_of) {
    products.clear();
    for (Matrix& m : all) product_of(m);
    if (blas != nullptr)
      multiply_each(context, *blas, products);
    else
      multiply_each(context, products);
  };
  for (std::int64_t s = 0; s < steps; ++s) {
    launch_each([&](const Matrix& m) {
      if (s > 0 && m.on_square()) return;
      Product p = symmetric(m.x, m.x, m.least, m.most, m.a);
      p.b_rows = false;
      products.push_back(p);
    });
    launch_each([&](const Matrix& m) {
      Product p = symmetric(m.a, m.a, m.least, m.least, s == 0 && m.on_square() ? m.q : m.p);
      p.factor = Polynomial::c, p.add = m.a, p.by = Polynomial::b;
      p.unit = m.on_square() || blas != nullptr ? Polynomial::a : 0;
      products.push_back(p);
    });
    launch_each([&](Matrix& m) {
      if (!m.on_square()) {
        const float* const add = blas != nullptr ? nullptr : m.x;
        products.push_back({m.p, m.x, add, m.result, m.least, m.least, m.most, 1, Polynomial::a, 0, true, false});
        swap(m.x, m.result);
      } else if (s > 0) {
        products.push_back(symmetric(m.p, m.q, m.least, m.least, m.next));
        swap(m.q, m.next);
      }
    });
    if (s + 1 == steps) break;
    launch_each([&](const Matrix& m) {
      if (m.on_square()) products.push_back(symmetric(m.a, s == 0 ? m.q : m.p, m.least, m.least, m.next));
    });
    launch_each([&](const Matrix& m) {
      if (m.on_square()) products.push_back(symmetric(m.next, s == 0 ? m.q : m.p, m.least, m.least, m.a));
    });
  }
  launch_each([&](Matrix& m) {
    if (steps == 0 || !m.on_square()) return;
    products.push_back({m.q, m.x, nullptr, m.result, m.least, m.least, m.most, 1, 0, 0, true, false});
    swap(m.x, m.result);
  });
}

std::int64_t aligned(std::int64_t floats) { return (floats + kPack - 1) / kPack * kPack; }
std::int64_t floats_of(const Matrix& m) { return 2 * aligned(m.rows * m.columns) + 4 * aligned(m.least * m.least); }

void run_some(const Context& context, std::vector<Matrix>& some, std::int64_t steps, bool by_blas, bool allow_tf32) {
  if (some.empty()) return;
  std::int64_t floats = 0, sums = 0;
  for (const Matrix& m : some) floats += floats_of(m), sums += chunks_of(m);
  const Workspace<float> memory(context, floats);
  const Workspace<double> chunks(context, sums);
  float* at = memory.get();
  double* sum = chunks.get();
  for (Matrix& m : some) {
    for (float** part : {&m.x, &m.result}) *part = at, at += aligned(m.rows * m.columns);
    for (float** part : {&m.a, &m.p, &m.q, &m.next}) *part = at, at += aligned(m.least * m.least);
    m.sums = sum;
    sum += chunks_of(m);
  }
  each_launch_of(some, chunks_of,
                 [&](const Jobs<Matrix>& jobs) { launch(context, sum_chunks, jobs.blocks(), kThreads, jobs); });
  each_launch_of(some, one_of,
                 [&](const Jobs<Matrix>& jobs) { launch(context, add_chunks, jobs.blocks(), kThreads, jobs); });
  each_launch_of(some, chunks_of,
                 [&](const Jobs<Matrix>& jobs) { launch(context, bring, jobs.blocks(), kThreads, jobs); });
  if (by_blas) {
    const Blas blas(context, allow_tf32);
    iterate(context, &blas, some, steps);
  } else {
    iterate(context, nullptr, some, steps);
  }
  each_launch_of(some, chunks_of,
                 [&](const Jobs<Matrix>& jobs) { launch(context, take, jobs.blocks(), kThreads, jobs); });
  some.clear();
}

}  // namespace

void orthogonalize(const Context& context, Tensors matrices, Tensors out, std::int64_t steps, double eps,
                   bool allow_tf32) {
  const OnDevice device(context);
  struct Some {
    std::vector<Matrix> matrices;
    std::int64_t work = 0;
  };
  Some small, large;
  for (std::int64_t t = 0; t < matrices.count; ++t) {
    const View& v = matrices[t];
    if (v.size == 0) continue;
    Matrix m{};
    m.from = v.data, m.to = static_cast<float*>(out[t].data), m.dtype = v.dtype, m.eps = eps;
    m.rows = v.rows, m.columns = v.size / v.rows;
    m.least = m.rows < m.columns ? m.rows : m.columns, m.most = m.rows < m.columns ? m.columns : m.rows;
    const bool by_blas = is_for_blas(m.least, m.most);
    Some& some = by_blas ? large : small;
    if (some.work > 0 && some.work + floats_of(m) > kMostWork) {
      run_some(context, some.matrices, steps, by_blas, allow_tf32);
      some.work = 0;
    }
    some.work += floats_of(m);
    // Those of equal shape, which are multiplied together, lie one behind another.
    std::size_t place = some.matrices.size();
    if (by_blas) {
      while (place > 0 && !some.matrices[place - 1].has_shape_of(m)) --place;
      if (place == 0) place = some.matrices.size();
    }
    some.matrices.insert(some.matrices.begin() + static_cast<std::ptrdiff_t>(place), m);
  }
  run_some(context, small.matrices, steps, false, allow_tf32);
  run_some(context, large.matrices, steps, true, allow_tf32);
}

}  // namespace boost_ext::cuda
