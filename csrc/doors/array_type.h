// What kind of array an object is, by its type.
#pragma once

#include <pybind11/pybind11.h>

#include "doors/dlpack.h"

namespace boost_ext {

struct ArrayType {
  enum Kind { numpy, mindspore, ours, dlpack, cuda, unknown };

  PyTypeObject* type;
  Kind kind;
  const dlpack::Exchange* exchange = nullptr;  // of a DLPack type that has it
  bool is_torch = false;
  bool is_distributed = false;      // a tensor of PyTorch that is spread over processes
  const char* immutable = nullptr;  // the framework, if its arrays never change
};

ArrayType array_type_of(pybind11::handle object);

}  // namespace boost_ext
