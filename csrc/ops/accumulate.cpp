#include "ops/accumulate.h"

#include <cmath>

#include "ops/unscale_and_check.h"

namespace boost_ext {

void accumulate(const Context& context, const Views& accumulators, const Views& grads, double factor, bool first) {
  const Device device = check(kAccumulate, accumulators, grads, factor, first);
  const auto narrow = static_cast<float>(factor);
  require(std::isfinite(narrow), kAccumulate.op, ": factor must be finite in float32, got ", factor);
  if (device == Device::cuda) return BOOST_EXT_CUDA(accumulate)(context, accumulators, grads, narrow, first);
  BOOST_EXT_CPU(accumulate)(context, accumulators, grads, narrow, first);
}

void accumulate_mean(const Context& context, double scale, double steps, std::int64_t count, const Views& accumulators,
                     const Views& grads) {
  accumulate(context, accumulators, grads, inverse_scale(scale, steps), count == 0);
}

void flatten(const Context& context, const Views& tensors, const View& out) {
  require_dtype(kFlatten.op, "out", out, DType::f32);
  require_size(kFlatten.op, "out", out, total_size(tensors));
  Views slices;
  auto* next = static_cast<float*>(out.data);
  for (const View& tensor : tensors) {
    View slice = out;
    slice.data = next;
    slice.size = tensor.size;
    slices.push_back(slice);
    next += tensor.size;
  }
  accumulate(context, slices, tensors, 1.0, true);
}

}  // namespace boost_ext
