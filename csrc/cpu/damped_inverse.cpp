#include "ops/damped_inverse.h"

#include "cpu/parallel.h"

namespace boost_ext::cpu::BOOST_EXT_ISA {
namespace {

bool fits(double value) { return value <= 3.4028234e38 && value >= -3.4028234e38; }

void add_scaled(double* to, const double* from, double factor, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] += factor * from[i];
}

// All loops run along rows, so that they are independent additions: no sum waits for its last one. `u` and `w` hold
// n by n numbers.
bool invert(const double* matrix, std::int64_t n, double factor, double damping, double* u, double* w, float* out) {
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t j = i; j < n; ++j) u[i * n + j] = factor * matrix[i * n + j];
    u[i * n + i] += damping;
  }
  // U^T U = M, in the upper triangle.
  for (std::int64_t k = 0; k < n; ++k) {
    double* row = u + k * n;
    if (!(row[k] > 0) || !fits(1 / row[k])) return false;
    const double inverse = 1 / __builtin_sqrt(row[k]);
    for (std::int64_t j = k; j < n; ++j) row[j] *= inverse;
    for (std::int64_t i = k + 1; i < n; ++i) add_scaled(u + i * n + i, row + i, -row[i], n - i);
  }
  // W = U^-T, lower: row k of U^T W = I.
  for (std::int64_t k = 0; k < n; ++k) {
    double* row = w + k * n;
    for (std::int64_t j = 0; j < k; ++j) row[j] = 0;
    row[k] = 1;
    for (std::int64_t i = 0; i < k; ++i) add_scaled(row, w + i * n, -u[i * n + k], i + 1);
    const double inverse = 1 / u[k * n + k];
    for (std::int64_t j = 0; j <= k; ++j) row[j] *= inverse;
  }
  // M^-1 = W^T W, lower, over U.
  for (std::int64_t i = 0; i < n; ++i) {
    double* row = u + i * n;
    for (std::int64_t j = 0; j <= i; ++j) row[j] = 0;
    for (std::int64_t k = i; k < n; ++k) add_scaled(row, w + k * n, w[k * n + i], i + 1);
    for (std::int64_t j = 0; j <= i; ++j) {
      if (!fits(row[j])) return false;
    }
  }
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t j = 0; j <= i; ++j) out[i * n + j] = out[j * n + i] = static_cast<float>(u[i * n + j]);
  }
  return true;
}

bool invert_diagonal(const double* diagonal, std::int64_t n, double factor, double damping, float* out) {
  for (std::int64_t i = 0; i < n; ++i) {
    const double value = factor * diagonal[i] + damping;
    if (!(value > 0) || !fits(value) || !fits(1 / value)) return false;
  }
  for (std::int64_t i = 0; i < n; ++i) out[i] = static_cast<float>(1 / (factor * diagonal[i] + damping));
  return true;
}

}  // namespace

bool damped_inverse(const Context& context, Tensors matrices, const std::int64_t* extent, const double* factor,
                    const double* damping, Tensors out) {
  Scratch<std::int64_t> first(matrices.count + 1);  // matrices before each tensor
  std::int64_t work = first[0] = 0, largest = 0;
  for (std::int64_t t = 0; t < matrices.count; ++t) {
    first[t + 1] = first[t] + (extent[t] > 0 ? matrices[t].rows : 1);
    work += matrices[t].size * (1 + extent[t] / 4);
    largest = extent[t] > largest ? extent[t] : largest;
  }
  Scratch<unsigned char> done(first[matrices.count]);
  on_threads(context.threads, work, first[matrices.count], [&](std::int64_t begin, std::int64_t end) {
    Scratch<double> u(largest * largest), w(largest * largest);
    std::int64_t t = 0;
    for (std::int64_t m = begin; m < end; ++m) {
      while (first[t + 1] <= m) ++t;
      const auto* from = static_cast<const double*>(matrices[t].data);
      auto* to = static_cast<float*>(out[t].data);
      const std::int64_t n = extent[t], at = (m - first[t]) * n * n;
      done[m] = n > 0 ? invert(from + at, n, factor[t], damping[t], u.get(), w.get(), to + at)
                      : invert_diagonal(from, matrices[t].size, factor[t], damping[t], to);
    }
  });
  bool all_done = true;
  for (std::int64_t m = 0; m < first[matrices.count]; ++m) all_done = all_done && done[m];
  return all_done;
}

}  // namespace boost_ext::cpu::BOOST_EXT_ISA
