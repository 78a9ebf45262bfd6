// The arguments of an op, described once: what check() refuses, what Python's function takes (doors/from_schema.h), and
// what _core.schemas() says. What is special to one op stands behind its call of check().
#pragma once

#include <cstddef>

#include "ops/tensor.h"

namespace boost_ext {

using DTypes = unsigned;  // a set of them
constexpr DTypes only(DType t) { return 1U << static_cast<unsigned>(t); }
constexpr DTypes kF32 = only(DType::f32), kF64 = only(DType::f64), kI32 = only(DType::i32);
constexpr DType the_one(DTypes set) {
  for (DType t : kNamedDTypes) {
    if (set == only(t)) return t;
  }
  return DType::other;
}
constexpr DTypes kFloats = kF32 | only(DType::f16) | only(DType::bf16);

enum class Kind : std::uint8_t { array, arrays, lists, answer, number, real, reals, integer, integers, flag };
enum class Range : std::uint8_t { any, finite, non_negative, positive };  // the latter two are finite, too

// Whether a float32 times the factor is another one.
inline bool changes(double factor) { return static_cast<float>(factor) != 1; }

struct Arg {
  const char* name;
  Kind kind;
  DTypes dtypes = 0;
  Range range = Range::any;
  std::int64_t size = -1;            // elements; -1: any number
  const char* like_name = nullptr;   // an argument that has as many arrays, of these sizes and orders
  const char* dtype_name = nullptr;  // an argument that has the dtypes
  bool is_written = false;
  const char* written_by = nullptr;  // only where that is a flag that is set, or a factor that changes
  bool takes_any_order = false;      // of elements, the same in all lists
  bool is_twin = false;              // may be the same memory as other twins, array by array
  bool may_repeat = false;           // an array that is listed again is one array
  bool is_optional = false;
  // Where Python gives None (if it is optional: True), it gets a new one: with a row for each array of the first
  // argument, or each row of it, and so many columns, 0 in a vector; or like the first argument.
  std::int64_t made_columns = kNotMade;
  bool is_made_alike = false;
  const char* inverse_of = nullptr;  // what a graph gives instead of it: a loss scale
  const char* counted_by = nullptr;  // an array before it, behind no list: with an element for each array of the list

  static constexpr std::int64_t kNotMade = -1;
  constexpr Arg written() const { return with(&Arg::is_written, true); }
  constexpr Arg written(const char* by) const { return written().with(&Arg::written_by, by); }
  constexpr Arg made(std::int64_t columns = 0) const { return written().with(&Arg::made_columns, columns); }
  constexpr Arg made_alike() const { return written().with(&Arg::is_made_alike, true); }
  constexpr Arg any_order() const { return with(&Arg::takes_any_order, true); }
  constexpr Arg twin() const { return with(&Arg::is_twin, true); }
  constexpr Arg repeatable() const { return with(&Arg::may_repeat, true); }
  constexpr Arg optional() const { return with(&Arg::is_optional, true); }
  constexpr Arg like(const char* other) const { return with(&Arg::like_name, other); }
  constexpr Arg dtypes_of(const char* other) const { return with(&Arg::dtype_name, other); }
  constexpr Arg inverse(const char* of) const { return with(&Arg::inverse_of, of); }
  constexpr Arg one_each(const char* of) const { return with(&Arg::counted_by, of); }

 private:
  template <class T> constexpr Arg with(T Arg::* property, T value) const {
    Arg a = *this;
    a.*property = value;
    return a;
  }
};

constexpr Arg array(const char* name, DTypes dtypes, std::int64_t size = -1) {
  return {name, Kind::array, dtypes, Range::any, size};
}
constexpr Arg arrays(const char* name, DTypes dtypes, std::int64_t size = -1) {
  return {name, Kind::arrays, dtypes, Range::any, size};
}
// Lists of arrays, one for each array of another argument.
constexpr Arg lists(const char* name, DTypes dtypes) { return {name, Kind::lists, dtypes}; }
constexpr Arg real(const char* name, Range range = Range::finite) { return {name, Kind::real, 0, range}; }
// One element, written: what Python gets as a number where it gives no array.
constexpr Arg answer(const char* name, DTypes dtype) {
  return {name, Kind::answer, dtype, Range::any, 1, nullptr, nullptr, true};
}
constexpr Arg reals(const char* name) { return {name, Kind::reals}; }
// A number of Python's, or one of the dtype on the arrays' device, where nobody checks it.
constexpr Arg number(const char* name, Range range = Range::finite, DTypes dtype = kF32) {
  return {name, Kind::number, dtype, range};
}
constexpr Arg integer(const char* name) { return {name, Kind::integer}; }
constexpr Arg integers(const char* name) { return {name, Kind::integers}; }
constexpr Arg flag(const char* name) { return {name, Kind::flag}; }

struct Schema {
  const char* op;  // in messages
  const Arg* args;
  std::size_t count;
  Devices devices;
  const char* function;  // of Python's, where an op has several

  template <std::size_t N>
  constexpr Schema(const char* op, const Arg (&args)[N], Devices devices = Devices::cpu_and_cuda,
                   const char* function = nullptr)
      : op(op), args(args), count(N), devices(devices), function(function != nullptr ? function : op) {}

  std::size_t place_of(const char* arg) const;  // std::logic_error: there is none
  void require_count(std::size_t n) const;      // std::logic_error: a function of another number of arguments
};

// One argument of a call, in the order of the schema.
class Value {
 public:
  Value(const View& v) : view_(&v) {}                         // NOLINT: each kind of argument is one
  Value(const Views& v) : views_(&v) {}                       // NOLINT
  Value(const std::vector<Views>& lists) : lists_(&lists) {}  // NOLINT
  Value(const Number& n) : number_(&n) {}                     // NOLINT
  Value(const Factors& f) : view_(&f.at) {}                   // NOLINT
  Value(double x) : real_(x) {}                               // NOLINT
  template <class T> Value(const std::vector<T>&) {}          // NOLINT: numbers that the op checks itself
  Value(std::int64_t x) : real_(static_cast<double>(x)) {}    // NOLINT
  Value(bool x) : real_(x ? 1 : 0) {}                         // NOLINT

 private:
  friend class Checker;
  const View* view_ = nullptr;
  const Views* views_ = nullptr;
  const std::vector<Views>* lists_ = nullptr;
  const Number* number_ = nullptr;
  double real_ = 0;
  bool has_no_array() const { return view_ == nullptr && views_ == nullptr && lists_ == nullptr && number_ == nullptr; }
};

// Refuses what the schema does not allow: std::invalid_argument, TypeError for dtypes, std::runtime_error for devices.
// Returns where the arrays are.
Device check(const Schema& schema, const Value* values, std::size_t count);

template <class... Values> Device check(const Schema& schema, const Values&... values) {
  const Value all[] = {Value(values)...};
  return check(schema, all, sizeof...(Values));
}

}  // namespace boost_ext
