// What an op leaves on a device when its caller brought no array for it: an array of Python's, which every framework
// can take over, and which is only read where somebody asks for its value.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <memory>
#include <vector>

#include "ops/device.h"

namespace boost_ext {

class DeviceArray {
 public:
  DeviceArray(const char* op, const Context& context, DType dtype, std::vector<std::int64_t> shape);
  View view() const;
  const Context& context() const { return memory_->context; }
  const std::vector<std::int64_t>& shape() const { return shape_; }
  DType dtype() const { return dtype_; }

  pybind11::array numpy() const;  // waits for the stream
  pybind11::dict cuda_array_interface() const;
  // stream: whose work the array must be ready for, as the protocol numbers them; -1 and none: nobody waits.
  pybind11::capsule dlpack(const pybind11::object& stream, const pybind11::object& max_version) const;

  struct Memory {
    Context context;
    void* data;
    Memory(const Context& c, std::int64_t bytes) : context(c), data(cuda::allocate(c, bytes)) {}
    ~Memory() { cuda::release(context, data); }
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
  };

 private:
  std::shared_ptr<Memory> memory_;
  DType dtype_;
  std::vector<std::int64_t> shape_;
};

void define_device_array(pybind11::module_& m);

}  // namespace boost_ext
