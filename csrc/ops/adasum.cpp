#include "ops/adasum.h"

namespace boost_ext {
namespace {

void require_pair(const char* op, const Views& a, const Views& b) {
  require_floats(op, {"a", a});
  require_same_count(op, {"b", b}, {"a", a});
  require_floats(op, {"b", b});
  require_same_sizes(op, {"b", b}, {"a", a});
  require_same_dtypes(op, {"b", b}, {"a", a});
}

void require_out(const char* op, const Views& a, const Views& b, const Views& out, Overlap& overlap) {
  require_same_count(op, {"out", out}, {"a", a});
  require_floats(op, {"out", out});
  require_same_sizes(op, {"out", out}, {"a", a});
  require_same_dtypes(op, {"out", out}, {"a", a});
  require_writables(op, {"out", out});
  overlap.reads({"a", a}, true);
  overlap.reads({"b", b}, true);
  overlap.writes({"out", out}, true);
}

void require_dots(const char* op, const char* arg, const Views& a, const View& dots) {
  require_dtype(op, arg, dots, DType::f64);
  require_size(op, arg, dots, 3 * static_cast<std::int64_t>(a.size()));
}

Device require_device_of_dots(const char* op, std::initializer_list<const Views*> lists, const View& dots) {
  const Device device = require_any_device(op, lists, {dots});
  if (device == Device::ascend) {
    throw std::runtime_error(text(op, ": got Ascend arrays, but dots are float64, which no Ascend kernel computes; ",
                                  "adasum_pair has one"));
  }
  return device;
}

}  // namespace

void adasum_dots(const Context& context, const Views& a, const Views& b, const View& out) {
  const char* op = "adasum_dots";
  const Device device = require_device_of_dots(op, {&a, &b}, out);
  require_pair(op, a, b);
  require_dots(op, "out", a, out);
  require_writable(op, "out", out);
  Overlap overlap(op);
  overlap.reads({"a", a});
  overlap.reads({"b", b});
  overlap.writes("out", out);
  overlap.check();
  auto* dots = static_cast<double*>(out.data);
  if (device == Device::cuda) return BOOST_EXT_CUDA(adasum_dots)(context, a, b, dots);
  BOOST_EXT_CPU(adasum_dots)(context, a, b, dots);
}

void adasum_combine(const Context& context, const Views& a, const Views& b, const View& dots, const Views& out) {
  const char* op = "adasum_combine";
  const Device device = require_device_of_dots(op, {&a, &b, &out}, dots);
  require_pair(op, a, b);
  require_dots(op, "dots", a, dots);
  Overlap overlap(op);
  require_out(op, a, b, out, overlap);
  overlap.reads("dots", dots);
  overlap.check();
  const auto* rows = static_cast<const double*>(dots.data);
  if (device == Device::cuda) return BOOST_EXT_CUDA(adasum_combine)(context, a, b, rows, out);
  BOOST_EXT_CPU(adasum_combine)(context, a, b, rows, out);
}

void adasum_pair(const Context& context, const Views& a, const Views& b, const Views& out) {
  const char* op = "adasum_pair";
  const Device device = require_any_device(op, {&a, &b, &out});
  require_pair(op, a, b);
  Overlap overlap(op);
  require_out(op, a, b, out, overlap);
  overlap.check();
  if (device == Device::cuda) return BOOST_EXT_CUDA(adasum_pair)(context, a, b, out);
  if (device == Device::ascend) return BOOST_EXT_ASCEND(adasum_pair)(context, a, b, out);
  std::vector<double> dots(3 * a.size());
  BOOST_EXT_CPU(adasum_dots)(context, a, b, dots.data());
  BOOST_EXT_CPU(adasum_combine)(context, a, b, dots.data(), out);
}

}  // namespace boost_ext
