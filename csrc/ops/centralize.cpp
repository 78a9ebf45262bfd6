#include "ops/centralize.h"

namespace boost_ext {

void centralize(const Context& context, const Views& grads) {
  const char* op = "centralize";
  const Device device = require_device(op, {&grads});
  require_floats(op, {"grads", grads});
  require_writables(op, {"grads", grads});
  const std::vector<std::size_t> first = first_occurrence(grads);
  Views matrices;
  Overlap overlap(op);
  for (std::size_t i = 0; i < grads.size(); ++i) {
    const Name name("grads", static_cast<std::int64_t>(i));
    if (first[i] != i) {
      const View& twin = grads[first[i]];
      require(twin.ndim == grads[i].ndim && twin.rows == grads[i].rows, op, ": ", name, " is the same memory as grads[",
              first[i], "] and must have the same shape, got another one");
      continue;
    }
    overlap.writes(name, grads[i]);
    if (grads[i].ndim >= 2 && grads[i].size > 0) matrices.push_back(grads[i]);
  }
  overlap.check();
  if (device == Device::cuda) return BOOST_EXT_CUDA(centralize)(context, matrices, matrices);
  if (!matrices.empty()) BOOST_EXT_CPU(centralize)(context, matrices, matrices);
}

void centralize(const Context& context, const Views& grads, const Views& out) {
  const char* op = "centralize";
  const List from{"grads", grads};
  const List to{"out", out};
  const Device device = require_device(op, {&grads, &out});
  require_floats(op, from);
  require_same_count(op, to, from);
  require_same_sizes(op, to, from);
  require_same_dtypes(op, to, from);
  require_writables(op, to);
  Overlap overlap(op);
  overlap.reads(from, true);
  overlap.writes(to, true);
  overlap.check();
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
