#include "ops/matmul.h"

#include "cpu/scatter_product.h"
#include "cpu/thin_product.h"

namespace boost_ext::cpu::BOOST_EXT_ISA {

void matmul(const Context& context, const float* a, const float* b, const MatmulSizes& s, bool transpose_a,
            bool transpose_b, float* out) {
  // Several products have a thread each.
  if (s.count == 1 && is_thin(s.m, s.k, transpose_a, transpose_b))
    return multiply_thin(context.threads, {a, b, out, s.m, s.k, s.n}, transpose_a, transpose_b);
  const Axis a_rows(s.m, transpose_a ? 1 : s.k), a_columns(s.k, transpose_a ? s.m : 1);
  const Axis b_rows(s.k, transpose_b ? 1 : s.n), b_columns(s.n, transpose_b ? s.k : 1);
  const Axis out_rows(s.m, s.n), out_columns(s.n, 1);
  multiply_scattered(context.threads, s.count, {a, s.m * s.k, a_rows, a_columns, transpose_a},
                     {b, s.k * s.n, b_rows, b_columns, transpose_b}, {out, s.m * s.n, out_rows, out_columns},
                     context.narrow_products);
}

}  // namespace boost_ext::cpu::BOOST_EXT_ISA
