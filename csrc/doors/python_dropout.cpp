// The Python door of dropout.
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
  std::optional<View> at;
  if (PyLong_Check(draw.ptr()))
    key.draw = draw.cast<std::uint32_t>();
  else
    at = a.one("draw", draw);
  a.run([&] { dropout(a.context(), from, p, key, shared, to, at ? &*at : nullptr); });
  return result;
}

// The same with the key that a layer's pass has drawn.
void py_dropout_by_key(const Object& x, double p, const Object& key, bool rows, const Object& out) {
  Arrays a("dropout");
  const View from = a.one("x", x), to = a.one("out", out), of = a.one("key", key);
  without_gil([&] { dropout(a.context(), from, p, read_dropout_key("dropout", of), rows ? from.width : 1, to); });
}

void py_dropout_key(const Object& state, std::int32_t stream, const Object& key) {
  Arrays a("dropout_key");
  const View from = a.one("state", state), to = a.one("key", key);
  without_gil([&] { dropout_key(from, stream, to); });
}

}  // namespace

void define_dropout(py::module_& m) {
  m.def("dropout", &py_dropout, py::arg("x"), py::arg("p"), py::arg("seed"), py::arg("draw"), py::arg("stream"),
        py::arg("shared"), py::arg("out"));
  m.def("dropout_by_key", &py_dropout_by_key, py::arg("x"), py::arg("p"), py::arg("key"), py::arg("rows"),
        py::arg("out"));
  m.def("dropout_key", &py_dropout_key, py::arg("state"), py::arg("stream"), py::arg("key"));
}

}  // namespace boost_ext
