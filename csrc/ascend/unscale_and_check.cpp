#include "ops/unscale_and_check.h"

#include "ascend/call.h"

namespace boost_ext::ascend {

void unscale_and_check(const Context& context, Tensors grads, const std::vector<float>& factors, const View& found) {
  const Call call("unscale_and_check", context);
  call.clear(found);
  for (std::int64_t i = 0; i < grads.count; ++i) {
    const View& g = grads[i];
    void* data = call.at(g);
    for (const float factor : factors) {
      const auto run = BOOST_EXT_ASCEND_BY_DTYPE(unscale_and_check, g.dtype);
      call.check(run(data, found.data, factor, g.size, call.stream()), {"grads", i});
    }
  }
  call.check(boost_ext_flag(found.data, call.stream()), "out");
}

}  // namespace boost_ext::ascend
