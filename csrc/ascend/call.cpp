#include "ascend/call.h"

#include "ops/device.h"

namespace boost_ext::ascend {

const Build* build() {
  static const Build b{boost_ext_ascend_emulated() != 0};
  return &b;
}

Call::Call(const char* op, const Context& context) : op_(op), stream_(context.stream), device_id_(context.device_id) {
  if (boost_ext_ascend_begin(context.device_id) != 0) {
    throw std::runtime_error(text(op, ": Ascend device ", context.device_id, " cannot be used by this process"));
  }
}

void* Call::at(const View& v) const {
  boost_ext_ascend_show(v.data, v.bytes());
  return v.data;
}

char* Call::work(std::int64_t bytes) const {
  void* memory = nullptr;
  if (boost_ext_ascend_work_memory(bytes, stream_, &memory) != 0) {
    throw std::runtime_error(text(op_, ": no ", bytes, " bytes of work memory on Ascend device ", device_id_));
  }
  return static_cast<char*>(memory);
}

void Call::clear(const View& v) const {
  if (boost_ext_ascend_clear(at(v), v.bytes(), stream_) != 0) check(2, "out");
}

void Call::check(int code, const Name& name) const {
  if (code == 0) return;
  if (code == 1) throw std::invalid_argument(text(op_, ": ", name, " is more than the kernel on Ascend can take"));
  throw std::runtime_error(text(op_, ": ", name, ": the runtime of Ascend device ", device_id_, " reports an error"));
}

void require_same_dtype(const char* op, const Name& arg, const View& v, const char* as, DType expected) {
  if (v.size == 0 || v.dtype == expected) return;
  throw TypeError(text(op, ": ", arg, " must be ", name(expected), " as ", as, " is, on Ascend, got ", dtype_name(v)));
}

}  // namespace boost_ext::ascend
