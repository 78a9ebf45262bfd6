#include "ops/bfgs_update.h"

#include "cpu/parallel.h"

namespace boost_ext::cpu::BOOST_EXT_ISA {
namespace {

template <class T> bool update(T* B, const T* s, const T* y, std::int64_t k, double eps) {
  double ys = 0;
  for (std::int64_t i = 0; i < k; ++i) ys += static_cast<double>(y[i]) * static_cast<double>(s[i]);
  if (!(ys > eps) || ys - ys != 0) return false;  // not if inf, either
  const double rho = 1 / ys;

  Scratch<double> u(k);  // B y; row by row, since B is symmetric, so that the inner loop runs over independent sums
  for (std::int64_t i = 0; i < k; ++i) u[i] = 0;
  double* const sums = u.get();
  for (std::int64_t j = 0; j < k; ++j) {
    const double yj = y[j];
    const T* row = B + j * k;
    for (std::int64_t i = 0; i < k; ++i) sums[i] += yj * row[i];
  }
  double yu = 0;
  for (std::int64_t i = 0; i < k; ++i) yu += y[i] * sums[i];
  const double ss = rho * (1 + rho * yu);
  if (!(ss - ss == 0)) return false;  // inf or nan in y, s or B: better no update than a matrix of nan

  for (std::int64_t i = 0; i < k; ++i) {
    T* row = B + i * k;
    const double si = s[i];
    const double ui = sums[i];
    for (std::int64_t j = i; j < k; ++j) {
      row[j] = static_cast<T>(row[j] - rho * (si * sums[j] + ui * s[j]) + ss * (si * s[j]));
    }
    for (std::int64_t j = i + 1; j < k; ++j) B[j * k + i] = row[j];
  }
  return true;
}

}  // namespace

bool bfgs_update(const View& B, const View& s, const View& y, double eps) {
  if (B.dtype == DType::f64) {
    return update(static_cast<double*>(B.data), static_cast<const double*>(s.data), static_cast<const double*>(y.data),
                  B.rows, eps);
  }
  return update(static_cast<float*>(B.data), static_cast<const float*>(s.data), static_cast<const float*>(y.data),
                B.rows, eps);
}

}  // namespace boost_ext::cpu::BOOST_EXT_ISA
