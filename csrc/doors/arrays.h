// Python objects as views: NumPy arrays, MindSpore tensors by pointer, and whatever offers __dlpack__. Nothing is ever
// copied; what cannot be used as it lies is refused with the reason.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "doors/device_array.h"
#include "doors/dlpack_arrays.h"
#include "ops/pool.h"
#include "ops/tensor.h"

namespace boost_ext {

struct ArrayType;

// What an op does with an argument. Without `kAnyOrder` it takes elements in C order alone.
enum Use : unsigned { kRead = 0, kWritten = 1, kAnyOrder = 2 };

template <class Fn> auto without_gil(Fn&& fn) {
  pybind11::gil_scoped_release release;
  return fn();
}

// The arguments of one call of `op`. Views are good as long as this object lives.
class Arrays {
 public:
  explicit Arrays(const char* op) : op_(op) {}
  ~Arrays();
  Arrays(const Arrays&) = delete;
  Arrays& operator=(const Arrays&) = delete;
  View one(const char* arg, pybind11::handle object, unsigned use = kRead) { return view(Name(arg), object, use); }
  // One array, or a list or tuple of them.
  Views list(const char* arg, pybind11::handle object, unsigned use = kRead);
  Views list_or_none(const char* arg, pybind11::handle object, unsigned use = kRead) {
    return object.is_none() ? Views() : list(arg, object, use);
  }
  // A list or tuple of such lists.
  std::vector<Views> lists(const char* arg, pybind11::handle object, unsigned use = kRead);
  // A number of Python's, or an array of one float32 or int32, which is read on the CPU, and left where it is on a
  // device.
  Number number(const char* arg, pybind11::handle object, DType dtype);
  // `out`, or if it is None a new array where the others are; `keep` is what Python gets of it.
  View result(const char* arg, pybind11::handle out, DType dtype, std::vector<std::int64_t> shape,
              pybind11::object& keep);

  // `out`, or if it is None and the others are on a device, new arrays like those of `model`, which are `like`, there.
  Views results(const char* arg, pybind11::handle out, pybind11::handle model, Tensors like, pybind11::object& keep,
                unsigned use);

  // The op, without the GIL. After it PyTorch is told which of its tensors are no longer what they were.
  template <class Fn> auto run(Fn&& fn) {
    const OnOpenMp on(is_torch_);
    if constexpr (std::is_void_v<decltype(fn())>) {
      without_gil(fn);
      tell_written();
    } else {
      auto result = without_gil(fn);
      tell_written();
      return result;
    }
  }

  // Where the arrays are, by the first of them on a device.
  bool on_device() const { return on_device_; }
  bool on_ascend() const { return on_ascend_; }
  Context context() const;

 private:
  View view(const Name& arg, pybind11::handle object, unsigned use, const char* wanted = "an array");
  View convert(const Name& arg, pybind11::handle object, const ArrayType& type, const char* wanted);
  View from_numpy(const Name& arg, pybind11::array array);
  View from_mindspore(const Name& arg, pybind11::handle object);
  View from_dlpack(const Name& arg, pybind11::handle object);
  View from_exchange(const Name& arg, pybind11::handle object, const ArrayType& type);
  View from_cuda(const Name& arg, pybind11::handle object);
  pybind11::object capsule_of(const Name& arg, pybind11::handle object, bool on_device);
  void see_device(const View& v, const std::function<void*()>& stream);
  void see_work_of(const Context& context);
  void require_no_gradient(const Name& arg, pybind11::handle object);
  void tell_written();
  void require_results(const char* arg) const;
  void keep_shape(std::vector<std::int64_t> shape);
  std::vector<std::int64_t> shape_of(std::size_t i, pybind11::handle object, const View& v) const;

  const char* op_;
  std::vector<Context> owners_;  // of memory of ours from other streams, whose next work must wait for this call's
  bool on_device_ = false;
  bool has_elements_ = false;  // the array that said where: one without elements may lie anywhere
  Context device_context_;
  std::size_t count_ = 0;                          // of arrays so far
  std::vector<std::vector<std::int64_t>> shapes_;  // of these, where they may lack an attribute for it
  bool on_ascend_ = false;
  // With device_target Ascend a tensor that was made of host data may still lie on the host: each is asked. To ask
  // costs as much as the pointer.
  bool on_device_known_ = false;
  bool on_one_device_ = false;
  Device mindspore_device_ = Device::cpu;
  std::vector<Context> seen_;              // whose work ours already waits for
  std::optional<bool> gradient_recorded_;  // by PyTorch, where a tensor made that a question
  std::vector<pybind11::object> alive_;    // the arrays, and DLPack capsules, whose destructor gives the tensor back
  std::vector<LentTensor> lent_;
  pybind11::list written_;  // PyTorch's
  bool is_torch_ = false;   // one of them at least
};

// MindSpore Parameters and Tensors that must keep dtype and shape, for calls that are made again and again. Each call
// asks where they lie now, and refuses by name what has changed since.
class FixedArrays {
 public:
  FixedArrays(std::string owner, pybind11::handle objects);  // one, or a list or tuple of them
  void append_to(Views& views);
  void require_same() const;

 private:
  struct Item {
    pybind11::object object, dtype, shape;
    View view;                           // without data
    std::size_t address = 0, bytes = 0;  // of the last call
  };
  void require_same(const Item& item) const;
  std::string owner_;
  std::vector<Item> items_;
};

}  // namespace boost_ext
