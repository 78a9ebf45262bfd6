#include "ops/centralize.h"

namespace boost_ext {

void centralize(const Context& context, const Views& grads) {
  const char* op = "centralize";
  require_backend(op, {&grads});
  require_floats(op, {"grads", grads});
  require_writables(op, {"grads", grads});
  const std::vector<std::size_t> first = first_occurrence(grads);
  Views matrices;
  Overlap overlap(op);
  for (std::size_t i = 0; i < grads.size(); ++i) {
    if (first[i] != i) continue;
    overlap.writes({"grads", static_cast<std::int64_t>(i)}, grads[i]);
    if (grads[i].ndim >= 2 && grads[i].size > 0) matrices.push_back(grads[i]);
  }
  overlap.check();
  if (!matrices.empty()) BOOST_EXT_CPU(centralize)(context, matrices);
}

}  // namespace boost_ext
