#include "ops/accumulate.h"

#include <cmath>

namespace boost_ext {

void accumulate(const Context& context, const Views& accumulators, const Views& grads, double factor, bool first) {
  const Device device = check(kAccumulate, accumulators, grads, factor, first);
  const auto narrow = static_cast<float>(factor);
  require(std::isfinite(narrow), kAccumulate.op, ": factor must be finite in float32, got ", factor);
  if (device == Device::cuda) return BOOST_EXT_CUDA(accumulate)(context, accumulators, grads, narrow, first);
  BOOST_EXT_CPU(accumulate)(context, accumulators, grads, narrow, first);
}

void flatten(const Context& context, const Views& tensors, const View& vector) {
  Views slices;
  auto* next = static_cast<float*>(vector.data);
  for (const View& tensor : tensors) {
    View slice = vector;
    slice.data = next;
    slice.size = tensor.size;
    slices.push_back(slice);
    next += tensor.size;
  }
  accumulate(context, slices, tensors, 1.0, true);
}

}  // namespace boost_ext
