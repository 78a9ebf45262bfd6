// What the functions that MindSpore's ops.Custom calls are written with: a macro, their parameters, and errors.
#pragma once

#include <cstdio>
#include <cstring>
#include <exception>

#include "ops/tensor.h"

#define BOOST_EXT_GRAPH_OP(name)                                                                    \
  static void graph_##name(Params& p);                                                              \
  extern "C" __attribute__((visibility("default"))) int boost_ext_##name(                           \
      int nparam, void** params, int* ndims, int64_t** shapes, const char** dtypes, void*, void*) { \
    return call(#name, &graph_##name, nparam, params, ndims, shapes, dtypes);                       \
  }                                                                                                 \
  static void graph_##name(Params& p)

namespace boost_ext {

inline DType parse(const char* op, int index, const char* dtype) {
  for (DType t : {DType::f32, DType::f16, DType::bf16, DType::f64, DType::i32, DType::b8, DType::u8, DType::i8}) {
    if (std::strcmp(dtype, name(t)) == 0) return t;
  }
  if (std::strcmp(dtype, "float") == 0) return DType::f32;
  throw TypeError(text(op, ": input ", index, " has the unsupported dtype ", dtype));
}

// The parameters in order: take() the next one, list(n) the next n; the last one is the output.
class Params {
 public:
  Params(const char* op, int count, void** data, int* ndims, int64_t** shapes, const char** dtypes)
      : op_(op), count_(count), data_(data), ndims_(ndims), shapes_(shapes), dtypes_(dtypes) {}

  View take() {
    require(next_ < count_ - 1, op_, ": must get more than ", next_, " inputs");
    return at(next_++);
  }
  Views list(int n) {
    Views views;
    for (int i = 0; i < n; ++i) views.push_back(take());
    return views;
  }
  int left() const { return count_ - 1 - next_; }
  // What is left, as `parts` lists of one length.
  int split(int parts) const {
    require(left() > 0 && left() % parts == 0, op_, ": must get ", parts, " lists of one length, got ", left(),
            " tensors");
    return left() / parts;
  }
  float scalar() {
    const View v = take();
    require(v.dtype == DType::f32 && v.size == 1, op_, ": input ", next_ - 1, " must be one float32");
    return *static_cast<const float*>(v.data);
  }
  std::int32_t integer() {
    const View v = take();
    require(v.dtype == DType::i32 && v.size == 1, op_, ": input ", next_ - 1, " must be one int32");
    return *static_cast<const std::int32_t*>(v.data);
  }
  bool flag() {
    const View v = take();
    require(v.dtype == DType::b8 && v.size == 1, op_, ": input ", next_ - 1, " must be one bool");
    return *static_cast<const bool*>(v.data);
  }
  // Whole numbers, as float64: an int32 could not hold the size of every tensor.
  std::vector<std::int64_t> integers() {
    const View v = take();
    require(v.dtype == DType::f64, op_, ": input ", next_ - 1, " must be float64");
    const auto* p = static_cast<const double*>(v.data);
    return {p, p + v.size};
  }
  void result(bool value) { *static_cast<bool*>(data_[count_ - 1]) = value; }

 private:
  View at(int i) const {
    View v;
    v.data = data_[i];
    v.set_shape(ndims_[i], [&](int d) { return shapes_[i][d]; });
    v.dtype = parse(op_, i, dtypes_[i]);
    return v;
  }
  const char* op_;
  int count_;
  void** data_;
  int* ndims_;
  int64_t** shapes_;
  const char** dtypes_;
  int next_ = 0;
};

template <class Fn> int guarded(Fn fn) {
  try {
    fn();
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "boost_ext: %s\n", e.what());
    return 1;
  }
}

inline int call(const char* op, void (*fn)(Params&), int count, void** data, int* ndims, int64_t** shapes,
                const char** dtypes) {
  return guarded([&] {
    require(count >= 1 && std::strcmp(dtypes[count - 1], "bool") == 0, op, ": must have one output, a bool");
    Params p(op, count, data, ndims, shapes, dtypes);
    p.result(true);
    fn(p);
  });
}

}  // namespace boost_ext
