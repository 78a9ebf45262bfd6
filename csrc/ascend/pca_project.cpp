#include "ops/pca_project.h"

#include "ascend/call.h"

namespace boost_ext::ascend {

void pca_project(const Context& context, const View& P, Tensors grads, std::int64_t n, const View& out) {
  const char* op = "pca_project";
  for (std::int64_t i = 0; i < grads.count; ++i) require_same_dtype(op, {"grads", i}, grads[i], "P", P.dtype);
  const Call call(op, context);
  const void* matrix = call.at(P);
  void* sums = call.at(out);
  char* work = call.work(boost_ext_ascend_workspace_bytes(P.rows));
  std::int64_t column = 0;
  for (std::int64_t i = 0; i < grads.count; ++i) {  // the first one writes, also where it is empty
    const auto run = BOOST_EXT_ASCEND_BY_DTYPE(pca_project, P.dtype);
    call.check(
        run(matrix, call.at(grads[i]), sums, work, P.rows, n, column, i > 0 ? 1 : 0, grads[i].size, call.stream()),
        {"grads", i});
    column += grads[i].size;
  }
}

}  // namespace boost_ext::ascend
