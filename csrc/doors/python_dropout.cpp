// The Python door of dropout.
#include "doors/from_schema.h"
#include "doors/python.h"
#include "ops/dropout.h"

namespace py = pybind11;

namespace boost_ext {
namespace {

// draw: an int, or an array of one int32.
Object py_dropout(const Object& x, double p, std::uint64_t seed, const Object& draw, std::uint32_t stream,
                  std::int64_t shared, const Object& out) {
  Arrays a("dropout");
  const View from = a.one("x", x);
  Object result = out;
  const View to = out.is_none() ? a.results("out", out, x, {from}, result)[0] : a.one("out", out, kWritten);
  DropoutKey key{seed, 0, stream};
  View at;
  if (PyLong_Check(draw.ptr()))
    key.draw = draw.cast<std::uint32_t>();
  else
    at = a.one("draw", draw);
  a.run([&] { dropout(a.context(), from, p, key, shared, to, at); });
  return result;
}

}  // namespace

void define_dropout(py::module_& m) {
  describe(kDropout);
  m.def("dropout", &py_dropout, py::arg("x"), py::arg("p"), py::arg("seed"), py::arg("draw"), py::arg("stream"),
        py::arg("shared"), py::arg("out"));
}

}  // namespace boost_ext
