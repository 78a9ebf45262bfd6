#include "ops/adasum.h"

namespace boost_ext {
namespace {

void require_dots(const char* op, const char* arg, const Views& a, const View& dots, Device device) {
  if (device == Device::ascend) {
    throw std::runtime_error(text(op, ": got Ascend arrays, but dots are float64, which no Ascend kernel computes; ",
                                  "adasum_pair has one"));
  }
  require_size(op, arg, dots, 3 * static_cast<std::int64_t>(a.size()));
}

}  // namespace

void adasum_dots(const Context& context, const Views& a, const Views& b, const View& out) {
  const Device device = check(kAdasumDots, a, b, out);
  require_dots(kAdasumDots.op, "out", a, out, device);
  auto* dots = static_cast<double*>(out.data);
  if (device == Device::cuda) return BOOST_EXT_CUDA(adasum_dots)(context, a, b, dots);
  BOOST_EXT_CPU(adasum_dots)(context, a, b, dots);
}

void adasum_combine(const Context& context, const Views& a, const Views& b, const View& dots, const Views& out) {
  const Device device = check(kAdasumCombine, a, b, dots, out);
  require_dots(kAdasumCombine.op, "dots", a, dots, device);
  const auto* rows = static_cast<const double*>(dots.data);
  if (device == Device::cuda) return BOOST_EXT_CUDA(adasum_combine)(context, a, b, rows, out);
  BOOST_EXT_CPU(adasum_combine)(context, a, b, rows, out);
}

void adasum_pair(const Context& context, const Views& a, const Views& b, const Views& out) {
  const Device device = check(kAdasumPair, a, b, out);
  if (device == Device::cuda) return BOOST_EXT_CUDA(adasum_pair)(context, a, b, out);
  if (device == Device::ascend) return BOOST_EXT_ASCEND(adasum_pair)(context, a, b, out);
  std::vector<double> dots(3 * a.size());
  BOOST_EXT_CPU(adasum_dots)(context, a, b, dots.data());
  BOOST_EXT_CPU(adasum_combine)(context, a, b, dots.data(), out);
}

}  // namespace boost_ext
