// bfgs_update: one inverse-BFGS update of a symmetric matrix, in place.
//
//   if y^T s > eps:  B <- (I - rho s y^T) B (I - rho y s^T) + rho s s^T,   rho = 1 / y^T s
//
// Nocedal & Wright, Numerical Optimization, eq. 6.17; the update of dimension-reduced training.
// B     (k, k) float32 or float64, symmetric (only B y is formed, from the rows as stored); written
// s, y  (k,) of B's dtype; step and difference of gradients
// Returns whether it updated: not when y^T s <= eps, or when s, y or B y hold inf or nan (B is then untouched).
// eps   finite, >= 0
// Arithmetic in float64 for both dtypes: B - rho (s u^T + u s^T) + rho (1 + rho y^T u) s s^T with u = B y, each element
// computed once and mirrored, so that B stays symmetric to the last bit. O(k^2).
#pragma once

#include "ops/runtime.h"
#include "ops/schema.h"

namespace boost_ext {

inline constexpr Arg kBfgsUpdateArgs[] = {array("B", kF32 | kF64).written(), array("s", 0).dtypes_of("B"),
                                          array("y", 0).dtypes_of("B"), real("eps", Range::non_negative),
                                          answer("out", kF32)};
inline constexpr Schema kBfgsUpdate{"bfgs_update", kBfgsUpdateArgs, Devices::all};

// out: one float32, 1 if it updated, else 0.
void bfgs_update(const Context& context, const View& B, const View& s, const View& y, double eps, const View& out);

BOOST_EXT_CPU_KERNEL(bool, bfgs_update, const View& B, const View& s, const View& y, double eps)

// The CPU's bits. `updated` may be nothing, if nobody wants it.
BOOST_EXT_CUDA_KERNEL(bfgs_update, const Context&, const View& B, const View& s, const View& y, double eps,
                      float* updated)

BOOST_EXT_ASCEND_KERNEL(bfgs_update, const Context&, const View& B, const View& s, const View& y, double eps,
                        const View& out)

// Shared with dim_reduce: B is a square floating matrix.
void require_square(const char* op, const char* arg, const View& B);

}  // namespace boost_ext
