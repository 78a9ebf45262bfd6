// The functions of MindSpore's graphs, called by name and pointer: what PYNATIVE_MODE runs.
#include "doors/graph.h"
#include "doors/python.h"

namespace py = pybind11;

namespace boost_ext {
namespace {

constexpr const char* kFixedArrays = "boost_ext.FixedArrays";

py::capsule py_fixed_arrays(const Object& tensors, const std::string& owner) {
  const auto free = [](void* arrays) { delete static_cast<FixedArrays*>(arrays); };
  return py::capsule(new FixedArrays(owner, tensors), kFixedArrays, free);
}

void py_require_same(const py::capsule& fixed) {
  static_cast<const FixedArrays*>(PyCapsule_GetPointer(fixed.ptr(), kFixedArrays))->require_same();
}

// Each part is an array, a list or tuple of them, or what fixed_arrays has made; one after the other they are the list
// that the function reads. The outputs of a pure function are the last part.
bool py_call(const std::string& name, const py::args& parts) {
  const GraphOp& op = find_graph_op(name);
  Arrays a(op.name);
  Views all;
  for (py::handle part : parts) {
    if (PyCapsule_IsValid(part.ptr(), kFixedArrays)) {
      static_cast<FixedArrays*>(PyCapsule_GetPointer(part.ptr(), kFixedArrays))->append_to(all);
      continue;
    }
    const Views some = a.list("inputs", part);
    all.insert(all.end(), some.begin(), some.end());
  }
  require_cpu(op.name, {&all});
  return without_gil([&] { return op(all); });
}

}  // namespace

void define_graph_ops(py::module_& m) {
  m.def("call", &py_call);
  m.def("fixed_arrays", &py_fixed_arrays, py::arg("tensors"), py::arg("owner"));
  m.def("require_same", &py_require_same, py::arg("fixed"));
  m.def("take_graph_error", &take_graph_error);
}

}  // namespace boost_ext
