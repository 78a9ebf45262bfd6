#include "ops/global_norm.h"

#include "cpu/parallel.h"

namespace boost_ext::cpu::BOOST_EXT_ISA {

void sums_of_squares(const Context& context, Tensors tensors, double* squares) {
  Blocks blocks(tensors, 4096);
  Scratch<double> partial(blocks.count());
  blocks.run(context.threads, [&](Block at) {
    D sums[kAccumulators] = {};
    typed(tensors[at.tensor], [&](auto* p) BOOST_EXT_INLINE_LAMBDA {
      sweep(at.count, [&](auto io, std::int64_t i, auto u) BOOST_EXT_INLINE_LAMBDA {
        const D x = widen(io.load(p + at.begin + i));
        D& acc = sums[decltype(u)::value];
        acc = add_product(acc, x, x);
      });
    });
    partial[at.index] = sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
  });
  for (std::int64_t t = 0; t < tensors.count; ++t) {
    squares[t] = 0;
    for (std::int64_t i = blocks.first(t); i < blocks.first(t + 1); ++i) squares[t] += partial[i];
  }
}

}  // namespace boost_ext::cpu::BOOST_EXT_ISA
