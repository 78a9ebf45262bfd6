#include "ops/global_norm.h"

#include "cpu/parallel.h"
#include "cpu/sums_of_products.h"

namespace boost_ext::cpu::BOOST_EXT_ISA {

void sums_of_squares(const Context& context, Tensors tensors, double* squares) {
  Blocks blocks(tensors, 4096);
  Scratch<double> partial(blocks.count());
  blocks.run(context.threads, [&](Block at) {
    typed(tensors[at.tensor], [&](auto* p) { partial[at.index] = sum_of_squares(p + at.begin, at.count); });
  });
  for (std::int64_t t = 0; t < tensors.count; ++t) {
    squares[t] = 0;
    for (std::int64_t i = blocks.first(t); i < blocks.first(t + 1); ++i) squares[t] += partial[i];
  }
}

}  // namespace boost_ext::cpu::BOOST_EXT_ISA
