#include "ops/accumulate.h"

#include "cpu/parallel.h"

namespace boost_ext::cpu::BOOST_EXT_ISA {

void accumulate(const Context& context, Tensors accumulators, Tensors grads, float factor, bool first) {
  Blocks(grads).run(context.threads, [&](Block at) {
    float* a = static_cast<float*>(accumulators[at.tensor].data) + at.begin;
    typed(grads[at.tensor], [&](auto* p) BOOST_EXT_INLINE_LAMBDA {
      const auto* g = p + at.begin;
      if (first) {
        sweep(at.count,
              [&](auto io, std::int64_t i, auto) BOOST_EXT_INLINE_LAMBDA { io.store(a + i, factor * io.load(g + i)); });
        return;
      }
      sweep<Full>(at.count, [&](auto io, std::int64_t i, auto)
                                BOOST_EXT_INLINE_LAMBDA { io.store(a + i, io.load(a + i) + factor * io.load(g + i)); });
    });
  });
}

}  // namespace boost_ext::cpu::BOOST_EXT_ISA
