#include "ops/row_sum.h"

#include "cpu/column_sums.h"

namespace boost_ext::cpu::BOOST_EXT_ISA {

void row_sum(const Context& context, const View& x, float* out) {
  typed(x, [&](const auto* from) {
    column_sums<1>(context.threads, x.rows, x.width, {out},
                   [&](auto io, std::int64_t r, std::int64_t j, F(&term)[1])
                       BOOST_EXT_INLINE_LAMBDA { term[0] = io.load(from + r * x.width + j); });
  });
}

}  // namespace boost_ext::cpu::BOOST_EXT_ISA
