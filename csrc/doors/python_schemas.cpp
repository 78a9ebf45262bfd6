// What the ops take, as Python sees it: for the tests, the documentation and whoever wants to know.
#include <map>

#include "doors/from_schema.h"
#include "doors/python.h"

namespace py = pybind11;

namespace boost_ext {
namespace {

std::map<std::string, const Schema*>& described() {
  static std::map<std::string, const Schema*> schemas;
  return schemas;
}

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::array:
      return "array";
    case Kind::arrays:
      return "arrays";
    case Kind::lists:
      return "lists";
    case Kind::answer:
      return "answer";
    case Kind::number:
      return "number";
    case Kind::real:
      return "real";
    case Kind::reals:
      return "reals";
    case Kind::integer:
      return "integer";
    case Kind::integers:
      return "integers";
    case Kind::flag:
      break;
  }
  return "flag";
}

py::dict schema_of(const Arg& arg) {
  py::list dtypes;
  for (DType t : kNamedDTypes) {
    if ((arg.dtypes & only(t)) != 0) dtypes.append(name(t));
  }
  const auto text_or_none = [](const char* text) { return text != nullptr ? py::object(py::str(text)) : py::none(); };
  using namespace pybind11::literals;
  return py::dict("name"_a = arg.name, "kind"_a = name_of(arg.kind), "dtypes"_a = dtypes,
                  "like"_a = text_or_none(arg.like_name), "dtypes_of"_a = text_or_none(arg.dtype_name),
                  "written"_a = arg.is_written, "any_order"_a = arg.takes_any_order, "twin"_a = arg.is_twin,
                  "repeatable"_a = arg.may_repeat, "optional"_a = arg.is_optional,
                  "made"_a = arg.made_columns != Arg::kNotMade || arg.is_made_alike,
                  "written_by"_a = text_or_none(arg.written_by), "inverse_of"_a = text_or_none(arg.inverse_of));
}

py::dict schemas() {
  py::dict all;
  for (const auto& [function, schema] : described()) {
    py::list args;
    for (std::size_t i = 0; i < schema->count; ++i) args.append(schema_of(schema->args[i]));
    all[function.c_str()] = args;
  }
  return all;
}

}  // namespace

void describe(const Schema& schema) { described().emplace(schema.function, &schema); }

void define_schemas(py::module_& m) { m.def("schemas", &schemas); }

}  // namespace boost_ext
