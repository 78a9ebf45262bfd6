#include "ops/bfgs_update.h"

#include "ascend/call.h"

namespace boost_ext::ascend {

constexpr std::int64_t kMaxRows = 192;  // B lies in the memory of one core

void bfgs_update(const Context& context, const View& B, const View& s, const View& y, double eps, const View& out) {
  const char* op = "bfgs_update";
  if (B.dtype != DType::f32) throw TypeError(text(op, ": B must be float32 on Ascend, got ", dtype_name(B)));
  require(B.rows <= kMaxRows, op, ": B must have at most ", kMaxRows, " rows on Ascend, got ", B.rows);
  const Call call(op, context);
  call.check(boost_ext_bfgs_update_f32(call.at(B), call.at(s), call.at(y), call.at(out), static_cast<float>(eps),
                                       B.rows, call.stream()),
             "B");
}

}  // namespace boost_ext::ascend
