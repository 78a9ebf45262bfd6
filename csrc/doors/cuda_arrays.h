// Arrays on CUDA devices: what __cuda_array_interface__ says of them, and on which stream their framework works.
#pragma once

#include <pybind11/pybind11.h>

#include <optional>
#include <vector>

#include "ops/tensor.h"

namespace boost_ext {

// https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html, versions 2 and 3.
struct CudaArray {
  View view;
  std::vector<std::int64_t> shape;
  bool names_stream = false;
  void* stream = nullptr;  // what is on it by now happens before the array is ready
};
CudaArray from_cuda_array_interface(const char* op, const Name& arg, pybind11::handle object);

// The stream that the caller works on: that of boost_ext.cuda.stream(), where one is set; the current one of the
// array's framework (PyTorch, CuPy); the one that the array names; else the legacy default stream.
void* current_stream(pybind11::handle object, int device_id);

// That of boost_ext.cuda.stream(), where one is set.
std::optional<void*> chosen_stream();

// Whether a type is one of `package`, or inherits from one: a class of the user's may be a tensor.
bool is_from(pybind11::handle type, const char* package);

// For boost_ext.cuda.stream(): of this thread, None for none. Returns the one before.
pybind11::object set_stream(const pybind11::object& stream);

// As DLPack and the interface above number them.
std::int64_t number_of_stream(const void* stream);
void* stream_numbered(std::uintptr_t number);

}  // namespace boost_ext
