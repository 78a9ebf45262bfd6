// matmul: products of matrices, `count` of them.
//
//   out[n] <- a[n] b[n], where each factor is transposed first if its flag is set
//
// a      float32, count matrices (m, k), or (k, m) if transposed
// b      float32, count matrices (k, n), or (n, k) if transposed
// sizes  four numbers: count, m, k, n
// out    float32, count matrices (m, n), written
// A sum of up to 128 products is rounded once for each of them (fused), in order; these sums are added in float32, in
// order. So the bits depend neither on instruction set nor threads. Products of more than 32 rows may round their
// factors to bfloat16 first (set_float32_matmul_precision()).
#pragma once

#include <vector>

#include "ops/runtime.h"
#include "ops/schema.h"

namespace boost_ext {

inline constexpr Arg kMatmulArgs[] = {array("a", kF32),    array("b", kF32),    integers("sizes"),
                                      flag("transpose_a"), flag("transpose_b"), array("out", kF32).written()};
inline constexpr Schema kMatmul{"matmul", kMatmulArgs, Devices::cpu};

void matmul(const Context& context, const View& a, const View& b, const std::vector<std::int32_t>& sizes,
            bool transpose_a, bool transpose_b, const View& out);

struct MatmulSizes {
  std::int64_t count, m, k, n;
};

BOOST_EXT_CPU_KERNEL(void, matmul, const Context&, const float* a, const float* b, const MatmulSizes& sizes,
                     bool transpose_a, bool transpose_b, float* out)

}  // namespace boost_ext
