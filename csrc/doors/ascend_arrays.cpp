#include "doors/ascend_arrays.h"

#include <cstdint>
#include <cstdlib>
#include <utility>
#include <vector>

#include "ops/tensor.h"

namespace py = pybind11;

namespace boost_ext {
namespace {

// Of the MindSpore that a tensor's class is from.
std::string package_of(PyTypeObject* type) {
  for (py::handle base : py::handle(reinterpret_cast<PyObject*>(type)).attr("__mro__")) {
    const auto module = py::str(base.attr("__module__")).cast<std::string>();
    if (module.rfind("mindspore", 0) == 0) return module.substr(0, module.find('.'));
  }
  return "mindspore";
}

// What `find` gives for a package, asked once a type; types are few and are kept alive so that their address stays
// theirs.
using Known = std::vector<std::pair<PyTypeObject*, py::object>>;
template <class Find> py::object once_a_type(Known& known, py::handle tensor, Find find) {
  PyTypeObject* type = Py_TYPE(tensor.ptr());
  for (const auto& [t, found] : known) {
    if (t == type) return found;
  }
  py::object found = find(package_of(type));
  if (known.size() < 64) {
    Py_INCREF(type);
    known.emplace_back(type, found);
  }
  return found;
}

py::object current_stream_of(const std::string& package) {
  return py::module_::import((package + ".runtime").c_str()).attr("current_stream");
}

// A function and its argument, which give the device_target; None where this MindSpore has none.
py::object target_of(const std::string& package) {
  try {
    const auto core = py::module_::import((package + "._c_expression").c_str());
    return py::make_tuple(core.attr("MSContext").attr("get_instance")().attr("get_param"),
                          core.attr("ms_ctx_param").attr("device_target"));
  } catch (const py::error_already_set&) { return py::none(); }
}

}  // namespace

int ascend_device_id(const std::string& device) {
  const std::size_t colon = device.find(':');
  return colon == std::string::npos ? 0 : std::atoi(device.c_str() + colon + 1);
}

bool all_on_cpu(py::handle tensor) {
  static auto& known = *new Known();
  const py::object target = once_a_type(known, tensor, target_of);
  if (target.is_none()) return false;
  PyObject* answer = PyObject_CallOneArg(PyTuple_GET_ITEM(target.ptr(), 0), PyTuple_GET_ITEM(target.ptr(), 1));
  if (answer == nullptr) throw py::error_already_set();
  const auto name = py::reinterpret_steal<py::object>(answer);
  return PyUnicode_Check(name.ptr()) && PyUnicode_CompareWithASCIIString(name.ptr(), "CPU") == 0;
}

void* current_ascend_stream(const char* op, py::handle tensor) {
  static auto& known = *new Known();
  const py::object stream = once_a_type(known, tensor, current_stream_of)();
  if (stream.is_none()) throw std::runtime_error(text(op, ": MindSpore has no current stream for Ascend tensors"));
  py::object pointer = stream.attr("stream_ptr");  // a method in MindSpore 2.10
  if (PyCallable_Check(pointer.ptr()) != 0) pointer = pointer();
  return reinterpret_cast<void*>(pointer.cast<std::uintptr_t>());
}

}  // namespace boost_ext
