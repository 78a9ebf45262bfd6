#include "ops/ema_update.h"

#include "cpu/parallel.h"

namespace boost_ext::cpu::BOOST_EXT_ISA {

void ema_update(const Context& context, Tensors averages, Tensors weights, float rate) {
  Blocks(weights).run(context.threads, [&](Block at) {
    float* a = static_cast<float*>(averages[at.tensor].data) + at.begin;
    typed(weights[at.tensor], [&](auto* p) BOOST_EXT_INLINE_LAMBDA {
      const auto* w = p + at.begin;
      sweep<Full>(at.count, [&](auto io, std::int64_t i, auto) BOOST_EXT_INLINE_LAMBDA {
        const auto average = io.load(a + i);
        io.store(a + i, average + rate * (io.load(w + i) - average));
      });
    });
  });
}

}  // namespace boost_ext::cpu::BOOST_EXT_ISA
