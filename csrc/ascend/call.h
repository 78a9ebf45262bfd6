// What the Ascend backend of an op is written in terms of. The kernels are reached through the C ABI of
// kernels/ascend/boost_ext_ascend.h.
#pragma once

#include "boost_ext_ascend.h"
#include "ops/runtime.h"

namespace boost_ext::ascend {

// One call of an op: while it lives, its thread is on the device of the context, and no other call launches anything.
class Call {
 public:
  Call(const char* op, const Context& context);
  ~Call() { boost_ext_ascend_end(); }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  // Where v is, for a kernel.
  void* at(const View& v) const;
  // The same memory for every call on this stream, until the next one.
  char* work(std::int64_t bytes) const;
  void clear(const View& v) const;
  // What the function for the argument `name` returned: 0, or nothing else is enqueued.
  void check(int code, const Name& name) const;
  void* stream() const { return stream_; }

 private:
  const char* op_;
  void* stream_;
  int device_id_;
};

// Kernels take all tensors of a call in one dtype, where those of the CPU convert.
void require_same_dtype(const char* op, const Name& arg, const View& v, const char* as, DType expected);

// The function of the C ABI for a dtype.
#define BOOST_EXT_ASCEND_BY_DTYPE(name, dtype)                   \
  ((dtype) == ::boost_ext::DType::f32   ? boost_ext_##name##_f32 \
   : (dtype) == ::boost_ext::DType::f16 ? boost_ext_##name##_f16 \
                                        : boost_ext_##name##_bf16)

}  // namespace boost_ext::ascend
