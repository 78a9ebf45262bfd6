#include "ops/damped_inverse.h"

#include "cpu/products.h"

namespace boost_ext::cpu::BOOST_EXT_ISA {
namespace {

constexpr std::int64_t kUnit = 16;    // matrices are filled up to a multiple of it, with the identity
constexpr std::int64_t kBlock = 64;   // rows of large matrices that are factorized at a time
constexpr std::int64_t kLarge = 384;  // extent from which a matrix is shared by the threads
constexpr int kPanel = kTileColumns<double>;
static_assert(kUnit % kPanel == 0 && kUnit % kPanelRows == 0);

bool fits(double value) { return value <= 3.4028234e38 && value >= -3.4028234e38; }

void add_scaled(double* to, const double* from, double factor, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] += factor * from[i];
}

void pack(const double* from, std::int64_t stride, std::int64_t rows, double* panel) {
  for (std::int64_t r = 0; r < rows; ++r, from += stride, panel += kPanel) {
    std::memcpy(panel, from, kPanel * sizeof(double));
  }
}

// M = U^T U, W = U^-T, M^-1 = W^T W: block row by block row, as sums of products A^T B.
class Inverter {
 public:
  Inverter(std::int64_t largest, int threads)
      : threads_(threads), u_(squared(largest)), w_(squared(largest)), left_(up_to(kUnit, largest) * kBlock) {}

  bool run(const double* matrix, std::int64_t n, double factor, double damping, float* out) {
    n_ = up_to(kUnit, n);
    load(matrix, n, factor, damping);
    for (std::int64_t k = 0; k < n_; k += block()) {
      if (!factorize(k)) return false;
    }
    for (std::int64_t k = block(); k < n_; k += block()) invert_factor(k);
    for (std::int64_t i = 0; i < n_; i += block()) square(i);
    for (std::int64_t i = 0; i < n; ++i) {
      for (std::int64_t j = 0; j <= i; ++j) {
        if (!fits(u_[i * n_ + j])) return false;
      }
    }
    for (std::int64_t i = 0; i < n; ++i) {
      for (std::int64_t j = 0; j <= i; ++j) out[i * n + j] = out[j * n + i] = static_cast<float>(u_[i * n_ + j]);
    }
    return true;
  }

 private:
  static std::int64_t squared(std::int64_t extent) { return up_to(kUnit, extent) * up_to(kUnit, extent); }
  std::int64_t block() const { return n_ <= 256 ? kBlock / 2 : kBlock; }
  std::int64_t high(std::int64_t k) const { return smaller(block(), n_ - k); }  // rows of the block row at k

  void load(const double* matrix, std::int64_t n, double factor, double damping) {
    for (std::int64_t i = 0; i < n_ * n_; ++i) u_[i] = w_[i] = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      for (std::int64_t j = i; j < n; ++j) u_[i * n_ + j] = factor * matrix[i * n + j];
      u_[i * n_ + i] += damping;
    }
    for (std::int64_t i = n; i < n_; ++i) u_[i * n_ + i] = 1;
  }

  // fn(begin, end, panel) for ranges of the columns from first to last, with memory for a panel.
  template <class Fn> void each_range(std::int64_t first, std::int64_t last, std::int64_t rows, Fn fn) {
    const std::int64_t work = (last - first) * rows * kBlock / 8;
    on_threads(threads_, work, (last - first) / kPanel, [&](std::int64_t begin, std::int64_t end) {
      Scratch<double> panel(kSlab * kPanel);
      fn(first + begin * kPanel, first + end * kPanel, panel.get());
    });
  }

  // to += sign * A^T B: A has `rows` rows of `some` columns, B as many of the columns from first to last of `to`. What
  // B has in column j above row top(j) is zero.
  template <class Top>
  void add_products(const double* a, const double* b, std::int64_t rows, std::int64_t some, double sign,
                    std::int64_t first, std::int64_t last, Top top, double* to) {
    double* const left = left_.get();
    for (std::int64_t i = 0; i < some; i += kPanel) pack(a + i, n_, rows, left + i * rows);
    each_range(first, last, rows, [&](std::int64_t begin, std::int64_t end, double* panel) {
      for (std::int64_t k = 0; k < rows; k += kSlab) {
        const std::int64_t count = smaller(kSlab, rows - k);
        for (std::int64_t j = begin; j < end; j += kPanel) {
          if (k + count <= top(j)) continue;
          pack(b + k * n_ + j, n_, count, panel);
          for (std::int64_t i = 0; i < some; i += kPanelRows) {
            Tile<double, kPanelRows> tile;
            const double* const from = left + i / kPanel * kPanel * rows + k * kPanel + i % kPanel;
            multiply_tile<1, kPanel>(from, panel, count, tile);
            BOOST_EXT_EACH_OF(kPanelRows, m) BOOST_EXT_EACH_OF(kTileVectors, v) {
              double* const at = to + (i + m) * n_ + j + v * kLanesOf<double>;
              put(at, vector_at(at) + sign * tile[m][v]);
            }
          }
        }
      }
    });
  }

  // The block row `to` <- W_kk to, in the columns from first to last.
  void solve(double* to, std::int64_t some, std::int64_t first, std::int64_t last) {
    each_range(first, last, some, [&](std::int64_t begin, std::int64_t end, double* panel) {
      for (std::int64_t j = begin; j < end; j += kPanel) {
        pack(to + j, n_, some, panel);
        for (std::int64_t i = 0; i < some; i += kPanelRows) {
          Tile<double, kPanelRows> tile;
          multiply_tile<kBlock, 1>(diagonal_ + i * kBlock, panel, some, tile);
          BOOST_EXT_EACH_OF(kPanelRows, m) BOOST_EXT_EACH_OF(kTileVectors, v) {
            put(to + (i + m) * n_ + j + v * kLanesOf<double>, tile[m][v]);
          }
        }
      }
    });
  }

  // The block row of U at k, and W on its diagonal.
  bool factorize(std::int64_t k) {
    double* const row = u_.get() + k * n_;
    const std::int64_t some = high(k);
    add_products(u_.get() + k, u_.get(), k, some, -1, k, n_, [](std::int64_t) { return 0; }, row);
    if (!factorize_diagonal(row + k, some)) return false;
    invert_diagonal(row + k, some);
    for (std::int64_t i = 0; i < some; ++i) {
      std::memcpy(w_.get() + (k + i) * n_ + k, diagonal_ + i * kBlock, static_cast<std::size_t>(some) * sizeof(double));
    }
    solve(row, some, k + some, n_);
    return true;
  }

  bool factorize_diagonal(double* u, std::int64_t some) const {
    for (std::int64_t k = 0; k < some; ++k) {
      double* const row = u + k * n_;
      if (!(row[k] > 0) || !fits(1 / row[k])) return false;
      const double inverse = 1 / __builtin_sqrt(row[k]);
      for (std::int64_t j = k; j < some; ++j) row[j] *= inverse;
      for (std::int64_t i = k + 1; i < some; ++i) add_scaled(u + i * n_ + i, row + i, -row[i], some - i);
    }
    return true;
  }

  // W_kk = U_kk^-T, lower, with zeros above: row k of U^T W = I.
  void invert_diagonal(const double* u, std::int64_t some) {
    for (double& value : diagonal_) value = 0;
    for (std::int64_t k = 0; k < some; ++k) {
      double* const row = diagonal_ + k * kBlock;
      row[k] = 1;
      for (std::int64_t i = 0; i < k; ++i) add_scaled(row, diagonal_ + i * kBlock, -u[i * n_ + k], i + 1);
      const double inverse = 1 / u[k * n_ + k];
      for (std::int64_t j = 0; j <= k; ++j) row[j] *= inverse;
    }
  }

  // The block row of W at k: W_kj = -W_kk sum over j <= i < k of U_ik^T W_ij.
  void invert_factor(std::int64_t k) {
    double* const row = w_.get() + k * n_;
    const std::int64_t some = high(k);
    const auto top = [this](std::int64_t j) { return j / block() * block(); };
    add_products(u_.get() + k, w_.get(), k, some, -1, 0, k, top, row);
    for (std::int64_t i = 0; i < some; ++i) {
      std::memcpy(diagonal_ + i * kBlock, row + i * n_ + k, static_cast<std::size_t>(some) * sizeof(double));
    }
    solve(row, some, 0, k);
  }

  // The block row of W^T W at i, up to the diagonal, over U.
  void square(std::int64_t i) {
    double* const row = u_.get() + i * n_;
    const std::int64_t some = high(i);
    for (std::int64_t r = 0; r < some; ++r) {
      for (std::int64_t j = 0; j < i + some; ++j) row[r * n_ + j] = 0;
    }
    const double* const below = w_.get() + i * n_;
    add_products(below + i, below, n_ - i, some, 1, 0, i + some, [](std::int64_t) { return 0; }, row);
  }

  int threads_;
  std::int64_t n_ = 0;
  Scratch<double> u_, w_, left_;      // U, W; the left factor of a product, in panels
  double diagonal_[kBlock * kBlock];  // W_kk
};

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
  std::int64_t work = first[0] = 0, largest = 0, largest_small = 0;
  for (std::int64_t t = 0; t < matrices.count; ++t) {
    first[t + 1] = first[t] + (extent[t] > 0 ? matrices[t].rows : 1);
    largest = extent[t] > largest ? extent[t] : largest;
    if (extent[t] >= kLarge) continue;
    work += matrices[t].size * (4 + extent[t] / 4);
    largest_small = extent[t] > largest_small ? extent[t] : largest_small;
  }
  Scratch<unsigned char> done(first[matrices.count]);
  const auto invert = [&](Inverter& inverter, std::int64_t t, std::int64_t m) {
    const std::int64_t n = extent[t], at = (m - first[t]) * n * n;
    done[m] = inverter.run(static_cast<const double*>(matrices[t].data) + at, n, factor[t], damping[t],
                           static_cast<float*>(out[t].data) + at);
  };
  on_threads(context.threads, work, first[matrices.count], [&](std::int64_t begin, std::int64_t end) {
    Inverter inverter(largest_small, 1);
    std::int64_t t = 0;
    for (std::int64_t m = begin; m < end; ++m) {
      while (first[t + 1] <= m) ++t;
      if (extent[t] >= kLarge) continue;
      if (extent[t] > 0) {
        invert(inverter, t, m);
      } else {
        const auto* from = static_cast<const double*>(matrices[t].data);
        done[m] = invert_diagonal(from, matrices[t].size, factor[t], damping[t], static_cast<float*>(out[t].data));
      }
    }
  });
  if (largest >= kLarge) {
    Inverter inverter(largest, context.threads);
    for (std::int64_t t = 0; t < matrices.count; ++t) {
      for (std::int64_t m = first[t]; extent[t] >= kLarge && m < first[t + 1]; ++m) invert(inverter, t, m);
    }
  }
  bool all_done = true;
  for (std::int64_t m = 0; m < first[matrices.count]; ++m) all_done = all_done && done[m];
  return all_done;
}

}  // namespace boost_ext::cpu::BOOST_EXT_ISA
