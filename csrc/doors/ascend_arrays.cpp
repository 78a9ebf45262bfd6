#include "doors/ascend_arrays.h"

#include <cstdint>
#include <cstdlib>
#include <utility>
#include <vector>

#include "ops/tensor.h"

namespace py = pybind11;

namespace boost_ext {
namespace {

// Asked once a type; types are few and are kept alive so that their address stays theirs.
py::object current_stream_of(PyTypeObject* type) {
  static auto* const known = new std::vector<std::pair<PyTypeObject*, py::object>>();
  for (const auto& [t, function] : *known) {
    if (t == type) return function;
  }
  std::string package = "mindspore";
  for (py::handle base : py::handle(reinterpret_cast<PyObject*>(type)).attr("__mro__")) {
    const auto module = py::str(base.attr("__module__")).cast<std::string>();
    if (module.rfind("mindspore", 0) != 0) continue;
    package = module.substr(0, module.find('.'));
    break;
  }
  py::object function = py::module_::import((package + ".runtime").c_str()).attr("current_stream");
  if (known->size() < 64) {
    Py_INCREF(type);
    known->emplace_back(type, function);
  }
  return function;
}

}  // namespace

int ascend_device_id(const std::string& device) {
  const std::size_t colon = device.find(':');
  return colon == std::string::npos ? 0 : std::atoi(device.c_str() + colon + 1);
}

void* current_ascend_stream(const char* op, py::handle tensor) {
  const py::object stream = current_stream_of(Py_TYPE(tensor.ptr()))();
  if (stream.is_none()) throw std::runtime_error(text(op, ": MindSpore has no current stream for Ascend tensors"));
  py::object pointer = stream.attr("stream_ptr");  // a method in MindSpore 2.10
  if (PyCallable_Check(pointer.ptr()) != 0) pointer = pointer();
  return reinterpret_cast<void*>(pointer.cast<std::uintptr_t>());
}

}  // namespace boost_ext
