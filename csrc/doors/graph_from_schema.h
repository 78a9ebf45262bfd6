// A function of MindSpore's graphs made from the schema of an op and its C++ function: the flat list holds the
// arguments in the order of the schema, and numbers as arrays of one element. What may be left out, and is, is an array
// of bool. An answer is one float32 that is written, or the bool that the function returns.
#pragma once

#include <optional>
#include <tuple>
#include <utility>

#include "doors/graph.h"
#include "ops/runtime.h"
#include "ops/schema.h"
#include "ops/unscale_and_check.h"

namespace boost_ext {

// How many arrays a list has: one for each element of another argument, or as many as the lists that are left.
inline std::int64_t length_of(const Reader& in, const Schema& schema, const Arg& list) {
  if (list.counted_by != nullptr) return in.seen(schema.place_of(list.counted_by)).size;
  std::int64_t lists = 0, others = 0;
  for (const Arg* arg = &list; arg != schema.args + schema.count; ++arg) {
    lists += arg->kind == Kind::arrays;
    others += arg->kind != Kind::arrays && !(arg->kind == Kind::answer && arg->dtypes == kF32);
  }
  return list.is_optional ? (in.left() - others) / lists : in.length_of(lists, others);
}

// How an argument of one C++ type comes from the list.
inline void read(Reader& in, const Arg& arg, double& x) {
  x = arg.inverse_of != nullptr ? inverse_scale(in.real(arg.inverse_of)) : in.real(arg.name);
}
inline void read(Reader& in, const Arg& arg, Number& x) {
  if (in.next_is(DType::b8))
    x.value = in.flag(arg.name) ? 1 : 0;
  else
    read(in, arg, x.value);
}
inline void read(Reader& in, const Arg& arg, Factors& x) { x = in.take(arg.name); }
inline void read(Reader& in, const Arg& arg, std::int64_t& x) { x = in.integer(arg.name); }
inline void read(Reader& in, const Arg& arg, bool& x) { x = in.flag(arg.name); }
inline void read(Reader& in, const Arg& arg, std::vector<std::int32_t>& x) {
  const View& v = in.take(arg.name, DType::i32, -1);
  const auto* numbers = static_cast<const std::int32_t*>(v.data);
  x.assign(numbers, numbers + v.size);
}

// An argument, and what becomes of it after the call: nothing, mostly.
template <class T> struct FromList {
  T value{};
  FromList(Reader& in, const Schema&, const Arg& arg) { read(in, arg, value); }
  void answer(Reader&) const {}
};
template <> struct FromList<Views> {
  Views value;
  FromList(Reader& in, const Schema& schema, const Arg& arg) : value(in.list(arg.name, length_of(in, schema, arg))) {}
  void answer(Reader&) const {}
};
template <> struct FromList<View> {
  View value;
  double number = 0;  // where an answer goes
  float flag = 0;
  float* written = nullptr;

  FromList(Reader& in, const Schema&, const Arg& arg) {
    if (arg.kind != Kind::answer) {
      value = in.take(arg.name);
      if (arg.is_optional && value.dtype == DType::b8) value = {};
    } else if (arg.dtypes == kF32) {
      value = view_of(flag);
    } else {
      value = view_of(number);
      written = in.written<float>(arg.name, DType::f32);
    }
  }
  FromList(const FromList&) = delete;
  void answer(Reader& in) const {
    if (written != nullptr) *written = static_cast<float>(number);
    if (value.data == &flag) in.answer(flag != 0);
  }
};

template <class... Args, std::size_t... I>
void read_and_call(Reader& in, const Schema& schema, void (*op)(const Context&, Args...), std::index_sequence<I...>) {
  std::tuple<std::optional<FromList<std::decay_t<Args>>>...> values;
  (std::get<I>(values).emplace(in, schema, schema.args[I]), ...);
  in.require_end();
  op(cpu_context(), std::get<I>(values)->value...);
  (std::get<I>(values)->answer(in), ...);
}

template <class... Args> void read_and_call(Reader& in, const Schema& schema, void (*op)(const Context&, Args...)) {
  schema.require_count(sizeof...(Args));
  read_and_call(in, schema, op, std::index_sequence_for<Args...>{});
}

}  // namespace boost_ext

#define BOOST_EXT_GRAPH_OP_OF(name, schema, function) \
  BOOST_EXT_GRAPH_OP(name) { read_and_call(in, schema, &function); }
#define BOOST_EXT_GRAPH_FUNCTION_OF(name, schema, function) \
  BOOST_EXT_GRAPH_FUNCTION(name) { read_and_call(in, schema, &function); }
