#include "ops/adasum.h"

#include "ascend/call.h"

namespace boost_ext::ascend {

void adasum_pair(const Context& context, Tensors a, Tensors b, Tensors out) {
  const Call call("adasum_pair", context);
  const std::int64_t workspace = boost_ext_ascend_workspace_bytes(3);
  char* work = call.work(workspace + 32);
  char* dots = work + workspace;  // of one tensor after the other
  for (std::int64_t i = 0; i < a.count; ++i) {
    const Name name("a", i);
    const DType dtype = a[i].dtype;
    const std::int64_t n = a[i].size;
    const void *x = call.at(a[i]), *y = call.at(b[i]);
    void* sum = call.at(out[i]);
    call.check(BOOST_EXT_ASCEND_BY_DTYPE(adasum_dots, dtype)(x, y, dots, work, n, call.stream()), name);
    call.check(BOOST_EXT_ASCEND_BY_DTYPE(adasum_combine, dtype)(x, y, dots, sum, n, call.stream()), name);
  }
}

}  // namespace boost_ext::ascend
