// A Python function made from the schema of an op and its C++ function: it converts what the schema names, calls the op
// without the GIL, and gives back what the op answers.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <tuple>
#include <utility>

#include "doors/arrays.h"
#include "ops/schema.h"

namespace boost_ext {

// What Python has given, in the order of the schema, and the arrays made of it so far.
struct Call {
  const Schema& schema;
  const pybind11::object* const* given;
  Arrays arrays{schema.op};
  Tensors first{nullptr, 0};  // of the first argument, if it is one of arrays
  std::int64_t rows = 0;      // of results that are made for it

  void see_first(const Views& list) { first = list, rows = first.count; }
  void see_first(const View& one) { first = {&one, 1}, rows = one.ndim == 2 ? one.rows : 1; }
  template <class T> void see_first(const T&) {}

  unsigned use_of(const Arg& arg) const {
    bool is_written = arg.is_written;
    if (arg.written_by != nullptr) {
      const pybind11::object& by = *given[schema.place_of(arg.written_by)];
      is_written = PyFloat_Check(by.ptr()) ? changes(by.cast<double>()) : by.ptr() != Py_False;
    }
    return (is_written ? kWritten : kRead) | (arg.takes_any_order ? kAnyOrder : kRead);
  }
  View result(const Arg& arg, const pybind11::object& out, std::vector<std::int64_t> shape, pybind11::object& keep) {
    return arrays.result(arg.name, out, the_one(arg.dtypes), std::move(shape), keep);
  }
  View made(const Arg& arg, const pybind11::object& out, pybind11::object& keep) {
    std::vector<std::int64_t> shape{rows};
    if (arg.made_columns > 0) shape.push_back(arg.made_columns);
    if (!arg.is_optional) return result(arg, out, std::move(shape), keep);
    if (out.is_none()) return {};
    const bool make = out.ptr() == Py_True;
    require(!make || !arrays.on_ascend(), schema.op, ": ", arg.name, " must be False for Ascend tensors, got True");
    return result(arg, make ? pybind11::none() : out, std::move(shape), keep);
  }
};

// How an argument of one C++ type comes from Python.
template <class T> void read(Call&, const Arg&, const pybind11::object& object, T& x) { x = object.cast<T>(); }
inline void read(Call& call, const Arg& arg, const pybind11::object& object, std::vector<Views>& x) {
  x = call.arrays.lists(arg.name, object, call.use_of(arg));
}
inline void read(Call& call, const Arg& arg, const pybind11::object& object, Number& x) {
  x = call.arrays.number(arg.name, object, the_one(arg.dtypes));
}
inline void read(Call& call, const Arg& arg, const pybind11::object& object, Factors& x) {
  x = PyFloat_Check(object.ptr()) ? Factors(object.cast<float>()) : call.arrays.one(arg.name, object);
}

// An argument, and what Python gets of it: nothing, mostly.
template <class T> struct FromPython {
  T value{};
  FromPython(Call& call, const Arg& arg, const pybind11::object& object) { read(call, arg, object, value); }
  pybind11::object answer() const { return {}; }
};
template <> struct FromPython<Views> {
  Views value;
  pybind11::object result;
  FromPython(Call& call, const Arg& arg, const pybind11::object& object) {
    Arrays& a = call.arrays;
    if (arg.is_made_alike)
      value = a.results(arg.name, object, *call.given[0], call.first, result, call.use_of(arg));
    else if (!arg.is_optional || !object.is_none())
      value = a.list(arg.name, object, call.use_of(arg));
    require(!arg.is_optional || !value.empty() || object.is_none(), call.schema.op, ": ", arg.name,
            " must hold at least one array, got an empty list");
  }
  pybind11::object answer() const { return result; }
};
template <> struct FromPython<View> {
  View value;
  double number = 0;  // where an answer goes that Python gives no array for
  float flag = 0;
  pybind11::object result;

  FromPython(Call& call, const Arg& arg, const pybind11::object& object) {
    Arrays& a = call.arrays;
    if (arg.kind == Kind::answer && object.is_none() && !a.on_device()) {
      value = arg.dtypes == kF32 ? view_of(flag) : view_of(number);
    } else if (arg.kind == Kind::answer) {
      value = call.result(arg, object, {1}, result);
    } else if (arg.made_columns != Arg::kNotMade) {
      value = call.made(arg, object, result);
    } else if (arg.is_made_alike && object.is_none()) {
      const Views made = a.results(arg.name, object, *call.given[0], call.first, result, call.use_of(arg));
      if (!made.empty()) value = made[0];
    } else if (!arg.is_optional || !object.is_none()) {
      value = a.one(arg.name, object, call.use_of(arg));
      if (arg.is_made_alike) result = object;
    }
  }
  FromPython(const FromPython&) = delete;
  pybind11::object answer() const {
    if (value.data == &number) return pybind11::float_(number);
    if (value.data == &flag) return pybind11::bool_(flag != 0);
    return result;
  }
};

// None, the one that there is, or a tuple.
template <std::size_t N> pybind11::object together(const pybind11::object (&answers)[N]) {
  pybind11::object found = pybind11::none();
  std::size_t count = 0;
  for (const pybind11::object& answer : answers) {
    if (!answer) continue;
    ++count;
    if (count == 2) found = pybind11::make_tuple(found);
    found = count == 1 ? answer : found + pybind11::make_tuple(answer);
  }
  return found;
}

template <std::size_t> using ObjectAt = const pybind11::object&;

template <class... Args, std::size_t... I>
void define(pybind11::module_& m, const Schema& schema, void (*op)(const Context&, Args...),
            std::index_sequence<I...>) {
  const auto call = [&schema, op](ObjectAt<I>... objects) {
    const pybind11::object* const given[] = {&objects...};
    Call a{schema, given};
    std::tuple<std::optional<FromPython<std::decay_t<Args>>>...> values;
    // One after the other: a result asks where the arrays before it are.
    const auto convert = [&](auto& value, std::size_t i) {
      value.emplace(a, schema.args[i], *given[i]);
      if (i == 0) a.see_first(value->value);
    };
    (convert(std::get<I>(values), I), ...);
    a.arrays.run([&] { op(a.arrays.context(), std::get<I>(values)->value...); });
    return together({std::get<I>(values)->answer()...});
  };
  m.def(schema.function, call, pybind11::arg(schema.args[I].name)...);
}

void describe(const Schema& schema);  // from now on one of _core.schemas()

template <class... Args> void define(pybind11::module_& m, const Schema& schema, void (*op)(const Context&, Args...)) {
  describe(schema);
  schema.require_count(sizeof...(Args));
  define(m, schema, op, std::index_sequence_for<Args...>{});
}

}  // namespace boost_ext
