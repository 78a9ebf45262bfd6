#include "ops/accumulate.h"

#include <cmath>

namespace boost_ext {

void accumulate(const Context& context, const Views& accumulators, const Views& grads, double factor, bool first) {
  const char* op = "accumulate";
  const Device device = require_device(op, {&accumulators, &grads});
  const List sums{"accumulators", accumulators};
  const List g{"grads", grads};
  require_floats(op, g);
  require_same_sizes(op, sums, g);
  for (std::size_t i = 0; i < accumulators.size(); ++i) {
    require_dtype(op, {"accumulators", static_cast<std::int64_t>(i)}, accumulators[i], DType::f32);
  }
  require_writables(op, sums);
  require_finite(op, "factor", factor);
  const auto narrow = static_cast<float>(factor);
  require(std::isfinite(narrow), op, ": factor must be finite in float32, got ", factor);
  Overlap overlap(op);
  overlap.writes(sums);
  overlap.reads(g);
  overlap.check();
  if (device == Device::cuda) return BOOST_EXT_CUDA(accumulate)(context, accumulators, grads, narrow, first);
  BOOST_EXT_CPU(accumulate)(context, accumulators, grads, narrow, first);
}

}  // namespace boost_ext
