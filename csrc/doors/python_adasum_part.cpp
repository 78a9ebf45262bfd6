// The Python door of adasum_part.
#include "doors/python.h"
#include "ops/adasum_part.h"

namespace py = pybind11;
using namespace boost_ext;

namespace {

using Release = py::gil_scoped_release;

void dots(const Object& x, const Object& y, const Sizes& sizes, std::int64_t index, const Object& dots) {
  Arrays args("adasum_part_dots");
  const View a = args.one("a", x), b = args.one("b", y), d = args.one("dots", dots);
  const Release release;
  adasum_part_dots(cpu_context(), a, b, sizes, index, d);
}

void combine(const Object& x, const Object& y, const Sizes& sizes, std::int64_t index, const Object& dots,
             const Object& out) {
  Arrays args("adasum_part_combine");
  const View a = args.one("a", x), b = args.one("b", y), d = args.one("dots", dots), o = args.one("out", out);
  const Release release;
  adasum_part_combine(cpu_context(), a, b, sizes, index, d, o);
}

void pack(const Object& tensors, const Object& vector) {
  Arrays args("adasum_part_pack");
  const Views t = args.list("tensors", tensors);
  const View v = args.one("vector", vector);
  const Release release;
  adasum_part_pack(t, v);
}

void keep(const Object& weights, const Object& halves, const Object& out) {
  Arrays args("adasum_part_keep");
  const Views w = args.list("weights", weights), o = args.list("out", out);
  const Views h = args.list_or_none("halves", halves);
  const Release release;
  adasum_part_keep(cpu_context(), w, h, o);
}

void pack_difference(const Object& x, const Object& y, const Object& vector) {
  Arrays args("adasum_part_pack_difference");
  const Views a = args.list("a", x), b = args.list("b", y);
  const View v = args.one("vector", vector);
  const Release release;
  adasum_part_pack_difference(cpu_context(), a, b, v);
}

void apply(const Object& vector, const std::vector<std::int64_t>& parts, const Object& old, const Object& weights,
           const Object& halves) {
  Arrays args("adasum_part_apply");
  const View v = args.one("vector", vector);
  const Views o = args.list("old", old), w = args.list("weights", weights);
  const Views h = args.list_or_none("halves", halves);
  const Release release;
  adasum_part_apply(cpu_context(), v, parts, o, w, h);
}

}  // namespace

namespace boost_ext {

void define_adasum_part(py::module_& m) {
  m.def("adasum_part_dots", &dots, py::arg("a"), py::arg("b"), py::arg("sizes"), py::arg("index"), py::arg("dots"));
  m.def("adasum_part_combine", &combine, py::arg("a"), py::arg("b"), py::arg("sizes"), py::arg("index"),
        py::arg("dots"), py::arg("out"));
  m.def("adasum_part_pack", &pack, py::arg("tensors"), py::arg("vector"));
  m.def("adasum_part_keep", &keep, py::arg("weights"), py::arg("halves"), py::arg("out"));
  m.def("adasum_part_pack_difference", &pack_difference, py::arg("a"), py::arg("b"), py::arg("vector"));
  m.def("adasum_part_apply", &apply, py::arg("vector"), py::arg("parts"), py::arg("old"), py::arg("weights"),
        py::arg("halves") = py::none());
}

}  // namespace boost_ext
