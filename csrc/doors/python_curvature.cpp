// The Python door of the curvature ops.
#include "doors/python.h"
#include "ops/covariance.h"
#include "ops/damped_inverse.h"
#include "ops/precondition.h"

namespace py = pybind11;

namespace boost_ext {
namespace {

// patches: the numbers of struct Patches in its order; none of them for indices.
void py_covariance(const Object& x, const std::vector<std::int64_t>& patches, double factor, const Object& out) {
  Arrays a("covariance");
  const View from = a.one("x", x), to = a.one("out", out, kWritten);
  if (patches.empty()) return a.run([&] { covariance(a.context(), from, factor, to); });
  require(patches.size() == 14, "covariance: patches must hold 14 numbers, got ", patches.size());
  const auto* v = patches.data();
  const Patches p{v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7], v[8], v[9], v[10], v[11], v[12], v[13]};
  a.run([&] { covariance(a.context(), from, p, factor, to); });
}

// On a device, and with `inverted`: that, else whether all were.
Object py_damped_inverse(const Object& matrices, const std::vector<double>& factor, const std::vector<double>& damping,
                         const Object& out, const Object& inverted) {
  Arrays a("damped_inverse");
  const Views from = a.list("matrices", matrices), to = a.list("out", out, kWritten);
  if (!a.on_device() && inverted.is_none()) {
    return py::bool_(a.run([&] { return damped_inverse(a.context(), from, factor, damping, to); }));
  }
  Object result;
  const View flag = a.result("inverted", inverted, DType::f32, {1}, result);
  a.run([&] { damped_inverse(a.context(), from, factor, damping, to, flag); });
  return result;
}

void py_precondition(const Object& grads, const Object& left, const Object& right, double inv_scale,
                     const Object& out) {
  Arrays a("precondition");
  const Views g = a.list("grads", grads), l = a.list("left", left), r = a.list("right", right),
              o = a.list("out", out, kWritten);
  a.run([&] { precondition(a.context(), inv_scale, g, l, r, o); });
}

}  // namespace

void define_curvature(py::module_& m) {
  m.def("covariance", &py_covariance, py::arg("x"), py::arg("patches"), py::arg("factor"), py::arg("out"));
  m.def("damped_inverse", &py_damped_inverse, py::arg("matrices"), py::arg("factor"), py::arg("damping"),
        py::arg("out"), py::arg("inverted"));
  m.def("precondition", &py_precondition, py::arg("grads"), py::arg("left"), py::arg("right"), py::arg("inv_scale"),
        py::arg("out"));
}

}  // namespace boost_ext
