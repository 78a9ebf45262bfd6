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

inline unsigned use_of(const Arg& arg) {
  return (arg.is_written ? kWritten : kRead) | (arg.takes_any_order ? kAnyOrder : kRead);
}

// How an argument of the C++ type T comes from Python.
template <class T> struct FromPython {  // double, bool, std::int64_t, std::vector<double>
  T value;
  FromPython(Arrays&, const Arg&, const pybind11::object& object) : value(object.cast<T>()) {}
};
template <> struct FromPython<Views> {
  Views value;
  FromPython(Arrays& a, const Arg& arg, const pybind11::object& object)
      : value(arg.is_optional ? a.list_or_none(arg.name, object, use_of(arg)) : a.list(arg.name, object, use_of(arg))) {
  }
};
template <> struct FromPython<Number> {
  Number value;
  FromPython(Arrays& a, const Arg& arg, const pybind11::object& object) : value(a.number(arg.name, object)) {}
};
template <> struct FromPython<View> {
  View value;
  double number = 0;  // where an answer goes that Python gives no array for
  float flag = 0;
  pybind11::object given;
  bool is_answer;

  FromPython(Arrays& a, const Arg& arg, const pybind11::object& object)
      : given(object), is_answer(arg.kind == Kind::answer) {
    if (!is_answer) {
      if (!arg.is_optional || !object.is_none()) value = a.one(arg.name, object, use_of(arg));
      return;
    }
    const bool is_flag = arg.dtypes == kF32;
    if (object.is_none() && !a.on_device())
      value = is_flag ? view_of(flag) : view_of(number);
    else
      value = a.result(arg.name, object, is_flag ? DType::f32 : DType::f64, {1}, given);
  }
  FromPython(const FromPython&) = delete;

  pybind11::object answer() const {
    if (!is_answer) return pybind11::none();
    if (!given.is_none()) return given;
    if (value.dtype == DType::f32) return pybind11::bool_(flag != 0);
    return pybind11::float_(number);
  }
};

// The last argument's answer, if it is one.
template <class T> pybind11::object answer_of(const FromPython<T>&) { return pybind11::none(); }
inline pybind11::object answer_of(const FromPython<View>& last) { return last.answer(); }

template <std::size_t> using ObjectAt = const pybind11::object&;

template <class... Args, std::size_t... I>
void define(pybind11::module_& m, const Schema& schema, void (*op)(const Context&, Args...),
            std::index_sequence<I...>) {
  const auto call = [&schema, op](ObjectAt<I>... objects) {
    Arrays a(schema.op);
    std::tuple<std::optional<FromPython<std::decay_t<Args>>>...> values;
    // One after the other: an answer asks where the arrays before it are.
    (std::get<I>(values).emplace(a, schema.args[I], objects), ...);
    a.run([&] { op(a.context(), std::get<I>(values)->value...); });
    return answer_of(*std::get<sizeof...(I) - 1>(values));
  };
  m.def(schema.op, call, pybind11::arg(schema.args[I].name)...);
}

void describe(const Schema& schema);  // from now on one of _core.schemas()

template <class... Args> void define(pybind11::module_& m, const Schema& schema, void (*op)(const Context&, Args...)) {
  describe(schema);
  schema.require_count(sizeof...(Args));
  define(m, schema, op, std::index_sequence_for<Args...>{});
}

}  // namespace boost_ext
