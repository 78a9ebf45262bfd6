#include "ops/unscale_and_check.h"

#include "ascend/call.h"

namespace boost_ext::ascend {

void unscale_and_check(const Context& context, Tensors grads, const std::vector<float>& factors, const View& found) {
  const Call call("unscale_and_check", context);
  call.clear(found);
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    std::vector<void*> data;
    std::vector<std::int64_t> sizes;
    for (std::int64_t i = 0; i < grads.count; ++i) {
      if (grads[i].dtype != dtype) continue;
      data.push_back(call.at(grads[i]));
      sizes.push_back(grads[i].size);
    }
    for (const float factor : factors) {
      const auto run = BOOST_EXT_ASCEND_BY_DTYPE(unscale_and_check_list, dtype);
      const auto count = static_cast<std::int64_t>(data.size());
      call.check(run(data.data(), sizes.data(), count, found.data, factor, call.stream()), "grads");
    }
  }
  call.check(boost_ext_flag(found.data, call.stream()), "out");
}

}  // namespace boost_ext::ascend
