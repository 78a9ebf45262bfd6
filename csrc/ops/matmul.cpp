#include "ops/matmul.h"

namespace boost_ext {

void matmul(const Context& context, const View& a, const View& b, const std::vector<std::int32_t>& sizes,
            bool transpose_a, bool transpose_b, const View& out) {
  const char* op = kMatmul.op;
  check(kMatmul, a, b, sizes, transpose_a, transpose_b, out);
  require(sizes.size() == 4, op, ": sizes must hold 4 numbers, got ", sizes.size());
  for (std::int64_t size : sizes) require(size >= 0, op, ": sizes must be >= 0, got ", size);
  const MatmulSizes s{sizes[0], sizes[1], sizes[2], sizes[3]};
  BOOST_EXT_CPU(matmul)
  (context, floats(op, "a", a, s.count * s.m * s.k), floats(op, "b", b, s.count * s.k * s.n), s, transpose_a,
   transpose_b, floats(op, "out", out, s.count * s.m * s.n));
}

}  // namespace boost_ext
