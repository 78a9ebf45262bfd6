// The Python door of adafactor_step.
#include "doors/python_adafactor.h"

#include <pybind11/stl.h>

#include "doors/arrays.h"
#include "ops/adafactor_step.h"

namespace py = pybind11;

namespace boost_ext {
namespace {

using Object = py::object;

void py_adafactor_step(const Object& params, const Object& masters, const Object& grads, const Object& rows,
                       const Object& columns, const Object& squares, const Object& moments,
                       const std::vector<double>& hyper, double scale, std::int64_t step, const std::vector<float>& lr,
                       const std::vector<float>& decay, const std::vector<unsigned char>& centralize) {
  Arrays a("adafactor_step");
  require(hyper.size() == 8, "adafactor_step: hyper must hold 8 numbers, got ", hyper.size());
  const AdaFactorSettings settings{hyper[0],      hyper[1], hyper[2], hyper[3], hyper[4], hyper[5] != 0, hyper[6] != 0,
                                   hyper[7] != 0, scale,    step,     lr,       decay,    centralize};
  AdaFactorTensors tensors;
  tensors.weights = a.list("params", params);
  if (!masters.is_none()) tensors.masters = a.list("masters", masters);
  tensors.grads = a.list("grads", grads);
  tensors.rows = a.list("rows", rows);
  tensors.columns = a.list("columns", columns);
  tensors.squares = a.list("squares", squares);
  if (!moments.is_none()) tensors.moments = a.list("moments", moments);
  py::gil_scoped_release release;
  adafactor_step(cpu_context(), settings, tensors);
}

}  // namespace

void define_adafactor_step(py::module_& m) {
  m.def("adafactor_step", &py_adafactor_step, py::arg("params"), py::arg("masters"), py::arg("grads"), py::arg("rows"),
        py::arg("columns"), py::arg("squares"), py::arg("moments"), py::arg("hyper"), py::arg("scale"), py::arg("step"),
        py::arg("lr"), py::arg("weight_decay"), py::arg("centralize"));
}

}  // namespace boost_ext
