#include "doors/array_type.h"

#include <pybind11/numpy.h>

#include <string>
#include <vector>

#include "doors/cuda_arrays.h"
#include "doors/device_array.h"
#include "doors/dlpack_arrays.h"

namespace py = pybind11;

namespace boost_ext {
namespace {

ArrayType::Kind kind_of(py::handle type, py::handle object) {
  if (py::isinstance<py::array>(object)) return ArrayType::numpy;
  if (py::isinstance<DeviceArray>(object)) return ArrayType::ours;
  for (py::handle base : type.attr("__mro__")) {
    const auto module = py::str(base.attr("__module__")).cast<std::string>();
    if (module.rfind("mindspore", 0) == 0 && py::hasattr(type, "data_ptr")) return ArrayType::mindspore;
  }
  // Of the type, not of the object: a class is no array, though it has its instances' methods.
  if (py::hasattr(type, "__dlpack__") && py::hasattr(type, "__dlpack_device__")) return ArrayType::dlpack;
  if (py::hasattr(type, "__cuda_array_interface__")) return ArrayType::cuda;
  return ArrayType::unknown;
}

}  // namespace

// Asked once a type; types are few and are kept alive so that their address stays theirs.
ArrayType array_type_of(py::handle object) {
  static auto* known = new std::vector<ArrayType>();
  PyTypeObject* type = Py_TYPE(object.ptr());
  for (const ArrayType& t : *known) {
    if (t.type == type) return t;
  }
  const py::handle handle = reinterpret_cast<PyObject*>(type);
  ArrayType result{type, kind_of(handle, object)};
  if (result.kind == ArrayType::dlpack) result.exchange = exchange_of(handle);
  if (result.kind == ArrayType::dlpack) {
    result.is_torch = is_from(handle, "torch");
    result.is_distributed = result.is_torch && py::hasattr(handle, "to_local");
    if (is_from(handle, "jax") || is_from(handle, "jaxlib")) result.immutable = "JAX";
  }
  if (result.kind != ArrayType::unknown && result.kind != ArrayType::cuda && known->size() < 64) {
    Py_INCREF(type);
    known->push_back(result);
  }
  return result;
}

}  // namespace boost_ext
