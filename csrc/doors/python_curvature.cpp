// The Python door of the curvature ops.
#include "doors/from_schema.h"
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

}  // namespace

void define_curvature(py::module_& m) {
  m.def("covariance", &py_covariance, py::arg("x"), py::arg("patches"), py::arg("factor"), py::arg("out"));
  define(m, kDampedInverse, &damped_inverse);
  define(m, kPrecondition, &precondition);
}

}  // namespace boost_ext
