// How a call of MindSpore's is read: one flat list of arrays, numbers included, one by one in the order that the
// function of the op says.
#pragma once

#include "ops/tensor.h"

namespace boost_ext {

class Reader {
 public:
  Reader(const char* op, const Views& arrays) : op_(op), arrays_(arrays) {}

  const char* op() const { return op_; }
  std::int64_t left() const { return static_cast<std::int64_t>(arrays_.size() - next_); }

  const View& take(const char* arg) {
    require(next_ < arrays_.size(), op_, ": ", arg, " is missing, got ", arrays_.size(), " arrays");
    return arrays_[next_++];
  }
  const View& take(const char* arg, DType dtype, std::int64_t size) {
    const View& v = take(arg);
    require_dtype(op_, arg, v, dtype);
    if (size >= 0) require_size(op_, arg, v, size);
    return v;
  }
  const View& at_least(const char* arg, DType dtype, std::int64_t size) {
    const View& v = take(arg, dtype, -1);
    require(v.size >= size, op_, ": ", arg, " must have at least ", size, " elements, got ", v.size);
    return v;
  }
  template <class T> T* data(const char* arg, DType dtype, std::int64_t size) {
    return static_cast<T*>(take(arg, dtype, size).data);
  }
  template <class T> T* written(const char* arg, DType dtype) {
    const View& v = take(arg);
    require_result(op_, arg, v, dtype);
    return static_cast<T*>(v.data);
  }
  float number(const char* arg) { return *data<const float>(arg, DType::f32, 1); }
  double real(const char* arg) {  // float64 where float32 would round what counts
    const View& v = take(arg);
    if (v.dtype != DType::f64) require_dtype(op_, arg, v, DType::f32);
    require_size(op_, arg, v, 1);
    return v.dtype == DType::f64 ? *static_cast<const double*>(v.data) : *static_cast<const float*>(v.data);
  }
  std::int32_t integer(const char* arg) { return *data<const std::int32_t>(arg, DType::i32, 1); }
  bool flag(const char* arg) { return *data<const bool>(arg, DType::b8, 1); }
  // Whole numbers, as float64: an int32 could not hold the size of every tensor.
  std::vector<std::int64_t> integers(const char* arg) {
    const View& v = take(arg, DType::f64, -1);
    const auto* p = static_cast<const double*>(v.data);
    return {p, p + v.size};
  }

  Views list(const char* arg, std::int64_t count) {
    require(count >= 0 && count <= left(), op_, ": ", arg, " must be ", count, " arrays, got ", left());
    const auto from = arrays_.begin() + static_cast<std::ptrdiff_t>(next_);
    next_ += static_cast<std::size_t>(count);
    return {from, from + static_cast<std::ptrdiff_t>(count)};
  }
  const View& seen(std::size_t i) const {
    require(i < next_, op_, ": array ", i, " is missing, got ", arrays_.size(), " arrays");
    return arrays_[i];
  }
  bool next_is(DType dtype) const { return next_ < arrays_.size() && arrays_[next_].dtype == dtype; }
  // How many arrays come before the next one of this dtype.
  std::int64_t until(DType dtype) const {
    std::int64_t count = 0;
    while (count < left() && arrays_[next_ + static_cast<std::size_t>(count)].dtype != dtype) ++count;
    return count;
  }
  Views rest(const char* arg) { return list(arg, left()); }
  // What is left, as `lists` lists of one length and so many other arrays.
  std::int64_t length_of(std::int64_t lists, std::int64_t others = 0) const {
    const std::int64_t in_lists = left() - others;
    require(in_lists > 0 && in_lists % lists == 0, op_, ": must get ", lists, " lists of one length, got ", in_lists,
            " arrays");
    return in_lists / lists;
  }
  void require_end() const {
    require(next_ == arrays_.size(), op_, ": must get as many arrays as the layout says, got ", arrays_.size());
  }

  // What the caller gets as a bool; true unless the function says otherwise.
  void answer(bool value) { answer_ = value; }
  bool answer() const { return answer_; }

 private:
  const char* op_;
  const Views& arrays_;
  std::size_t next_ = 0;
  bool answer_ = true;
};

}  // namespace boost_ext
