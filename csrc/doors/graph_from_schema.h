// A function of MindSpore's graphs made from the schema of an op and its C++ function: the flat list holds the
// arguments in the order of the schema, lists of one length, and numbers as arrays of one element.
#pragma once

#include <optional>
#include <tuple>
#include <utility>

#include "doors/graph.h"
#include "ops/runtime.h"
#include "ops/schema.h"

namespace boost_ext {

// How an argument of the C++ type T comes from the list.
template <class T> struct FromList;
template <> struct FromList<Views> {
  Views value;
  FromList(Reader& in, const Arg& arg, std::int64_t length) : value(in.list(arg.name, length)) {}
};
template <> struct FromList<double> {
  double value;
  FromList(Reader& in, const Arg& arg, std::int64_t) : value(in.real(arg.name)) {}
};
template <> struct FromList<Number> {
  Number value;
  FromList(Reader& in, const Arg& arg, std::int64_t) : value{in.number(arg.name), {}} {}
};
template <> struct FromList<std::int64_t> {
  std::int64_t value;
  FromList(Reader& in, const Arg& arg, std::int64_t) : value(in.integer(arg.name)) {}
};
template <> struct FromList<bool> {
  bool value;
  FromList(Reader& in, const Arg& arg, std::int64_t) : value(in.flag(arg.name)) {}
};
template <> struct FromList<View> {
  View value;
  float flag = 0;  // of an answer, which a graph gets as its output

  FromList(Reader& in, const Arg& arg, std::int64_t)
      : value(arg.kind == Kind::answer ? view_of(flag) : in.take(arg.name)) {}
  FromList(const FromList&) = delete;
};

template <class T> void answer_to(Reader&, const Arg&, const FromList<T>&) {}
inline void answer_to(Reader& in, const Arg& last, const FromList<View>& found) {
  if (last.kind == Kind::answer) in.answer(found.flag != 0);
}

template <class... Args, std::size_t... I>
void read_and_call(Reader& in, const Schema& schema, void (*op)(const Context&, Args...), std::index_sequence<I...>) {
  std::int64_t lists = 0, others = 0;
  for (const Arg* arg = schema.args; arg != schema.args + schema.count; ++arg) {
    lists += arg->kind == Kind::arrays;
    others += arg->kind != Kind::arrays && arg->kind != Kind::answer;
  }
  const std::int64_t length = lists > 0 ? in.length_of(lists, others) : 0;
  std::tuple<std::optional<FromList<std::decay_t<Args>>>...> values;
  (std::get<I>(values).emplace(in, schema.args[I], length), ...);
  in.require_end();
  op(cpu_context(), std::get<I>(values)->value...);
  answer_to(in, schema.args[schema.count - 1], *std::get<sizeof...(I) - 1>(values));
}

template <class... Args> void read_and_call(Reader& in, const Schema& schema, void (*op)(const Context&, Args...)) {
  schema.require_count(sizeof...(Args));
  read_and_call(in, schema, op, std::index_sequence_for<Args...>{});
}

}  // namespace boost_ext
