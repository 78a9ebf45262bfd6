#include "ops/centralize.h"

namespace boost_ext {

void centralize_in_place(const Context& context, const Views& grads) {
  const Device device = check(kCentralizeInPlace, grads);
  const std::vector<std::size_t> first = first_occurrence(grads);
  Views matrices;
  for (std::size_t i = 0; i < grads.size(); ++i) {
    if (first[i] != i) {
      const View& twin = grads[first[i]];
      require(twin.ndim == grads[i].ndim && twin.rows == grads[i].rows, kCentralize.op, ": grads[", i,
              "] is the same memory as grads[", first[i], "] and must have the same shape, got another one");
      continue;
    }
    if (grads[i].ndim >= 2 && grads[i].size > 0) matrices.push_back(grads[i]);
  }
  if (device == Device::cuda) return BOOST_EXT_CUDA(centralize)(context, matrices, matrices);
  if (!matrices.empty()) BOOST_EXT_CPU(centralize)(context, matrices, matrices);
}

void centralize(const Context& context, const Views& grads, const Views& out) {
  const Device device = check(kCentralize, grads, out);
  Views read, written;
  for (std::size_t i = 0; i < grads.size(); ++i) {
    if (grads[i].size == 0) continue;
    read.push_back(grads[i]);
    written.push_back(out[i]);
  }
  if (device == Device::cuda) return BOOST_EXT_CUDA(centralize)(context, read, written);
  if (!read.empty()) BOOST_EXT_CPU(centralize)(context, read, written);
}

}  // namespace boost_ext
