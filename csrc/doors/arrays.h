// Python objects as views: NumPy arrays, MindSpore tensors by pointer, and whatever offers __dlpack__. Nothing is ever
// copied; what cannot be used as it lies is refused with the reason.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <string>
#include <vector>

#include "ops/tensor.h"

namespace boost_ext {

// The arguments of one call of `op`. Views are good as long as this object lives.
class Arrays {
 public:
  explicit Arrays(const char* op) : op_(op) {}
  View one(const char* arg, pybind11::handle object) { return view(Name(arg), object); }
  Views list(const char* arg, pybind11::handle object);                // one array, or a list or tuple of them
  std::vector<Views> lists(const char* arg, pybind11::handle object);  // a list or tuple of such lists

 private:
  View view(const Name& arg, pybind11::handle object);
  View convert(const Name& arg, pybind11::handle object);
  View from_numpy(const Name& arg, pybind11::array array);
  View from_mindspore(const Name& arg, pybind11::handle object);
  View from_dlpack(const Name& arg, pybind11::handle object);

  const char* op_;
  bool on_device_known_ = false;  // MindSpore's tensors are all on one device; to ask costs as much as the pointer
  Device mindspore_device_ = Device::cpu;
  std::vector<pybind11::object> alive_;  // the arrays, and DLPack capsules, whose destructor gives the tensor back
};

// MindSpore tensors that keep dtype and shape, as parameters do, for calls that are made again and again: only where
// they lie is asked anew each time.
class FixedArrays {
 public:
  FixedArrays(const char* op, const char* arg, pybind11::handle objects);
  void append_to(Views& views) const;

 private:
  std::vector<pybind11::object> objects_;
  Views views_;
};

}  // namespace boost_ext
