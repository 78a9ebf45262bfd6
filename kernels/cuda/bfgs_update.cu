// See ops/bfgs_update.h.
#include "in_order.cuh"
#include "ops/bfgs_update.h"

namespace boost_ext::cuda {
namespace {

constexpr int kSide = 16;  // of the part of B that a block updates: an element a thread
static_assert(kSide * kSide == kThreads);

struct Coefficients {
  double rho, of_ss;
  bool updates;
};

// One block. u = B y.
template <class T>
__global__ void find_coefficients(const T* s, const T* y, const double* u, std::int64_t k, double eps,
                                  Coefficients* coefficients, float* updated) {
  const double ys =
      sum_in_order(k, [&](std::int64_t i) { return static_cast<double>(y[i]) * static_cast<double>(s[i]); });
  const double yu = sum_in_order(k, [&](std::int64_t i) { return static_cast<double>(y[i]) * u[i]; });
  if (threadIdx.x != 0) return;
  const double rho = 1 / ys;
  const double of_ss = rho * (1 + rho * yu);
  const bool updates = ys > eps && ys - ys == 0 && of_ss - of_ss == 0;  // neither is inf or nan
  *coefficients = {rho, of_ss, updates};
  if (updated != nullptr) *updated = updates ? 1.0F : 0.0F;
}

// Block b: a square on or above the diagonal, and its mirror image. Only what lies above is read.
template <class T>
__global__ void update_squares(T* B, const T* s, const double* u, std::int64_t k, std::int64_t squares,
                               const Coefficients* coefficients) {
  __shared__ T mirror[kSide][kSide + 1];
  if (!coefficients->updates) return;
  const std::int64_t top = blockIdx.x / squares * kSide, left = blockIdx.x % squares * kSide;
  if (left < top) return;
  const int x = static_cast<int>(threadIdx.x) % kSide, y = static_cast<int>(threadIdx.x) / kSide;
  const std::int64_t i = top + y, j = left + x;
  if (i <= j && j < k) {
    const double si = static_cast<double>(s[i]), sj = static_cast<double>(s[j]);
    const double value = static_cast<double>(B[i * k + j]) - coefficients->rho * (si * u[j] + u[i] * sj) +
                         coefficients->of_ss * (si * sj);
    mirror[y][x] = static_cast<T>(value);
    B[i * k + j] = mirror[y][x];
  }
  __syncthreads();
  const std::int64_t row = left + y, column = top + x;
  if (column < row && row < k) B[row * k + column] = mirror[x][y];
}

template <class T>
void update(const Context& context, T* B, const T* s, const T* y, std::int64_t k, double eps, float* updated) {
  const Workspace<double> u(context, k);
  const Workspace<Coefficients> coefficients(context, 1);
  multiply(context, B, y, k, u.get());
  launch(context, find_coefficients<T>, 1, kThreads, s, y, u.get(), k, eps, coefficients.get(), updated);
  const std::int64_t squares = (k + kSide - 1) / kSide;
  launch(context, update_squares<T>, squares * squares, kThreads, B, s, u.get(), k, squares, coefficients.get());
}

}  // namespace

void bfgs_update(const Context& context, const View& B, const View& s, const View& y, double eps, float* updated) {
  const OnDevice device(context);
  if (B.dtype == DType::f64) {
    update(context, static_cast<double*>(B.data), static_cast<const double*>(s.data),
           static_cast<const double*>(y.data), B.rows, eps, updated);
  } else {
    update(context, static_cast<float*>(B.data), static_cast<const float*>(s.data), static_cast<const float*>(y.data),
           B.rows, eps, updated);
  }
}

}  // namespace boost_ext::cuda
