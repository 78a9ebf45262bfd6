#include "ops/conv2d.h"

namespace boost_ext {
namespace {

Convolution convolution(const char* op, const std::vector<std::int32_t>& patches, std::int64_t groups,
                        std::int64_t outputs) {
  const Patches p = patches_of(op, patches);
  require_extents(op, p);
  require(groups >= 1 && p.c % groups == 0 && outputs % groups == 0, op, ": groups must divide ", p.c, " channels and ",
          outputs, " outputs, got ", groups);
  return {p, groups, outputs};
}

}  // namespace

void conv2d(const Context& context, const View& x, const View& w, const std::vector<std::int32_t>& patches,
            std::int64_t groups, const View& y) {
  const char* op = kConv2d.op;
  check(kConv2d, x, w, patches, groups, y);
  const Convolution of = convolution(op, patches, groups, w.rows);
  BOOST_EXT_CPU(conv2d)
  (context, floats(op, "x", x, of.images()), floats(op, "w", w, of.weights()), of, floats(op, "y", y, of.results()));
}

void conv2d_input_gradient(const Context& context, const View& dy, const View& w,
                           const std::vector<std::int32_t>& patches, std::int64_t groups, const View& dx) {
  const char* op = kConv2dInputGradient.op;
  check(kConv2dInputGradient, dy, w, patches, groups, dx);
  const Convolution of = convolution(op, patches, groups, w.rows);
  BOOST_EXT_CPU(conv2d_input_gradient)
  (context, floats(op, "dy", dy, of.results()), floats(op, "w", w, of.weights()), of,
   floats(op, "dx", dx, of.images()));
}

void conv2d_weight_gradient(const Context& context, const View& dy, const View& x,
                            const std::vector<std::int32_t>& patches, std::int64_t groups, const View& dw) {
  const char* op = kConv2dWeightGradient.op;
  check(kConv2dWeightGradient, dy, x, patches, groups, dw);
  const Convolution of = convolution(op, patches, groups, dw.rows);
  BOOST_EXT_CPU(conv2d_weight_gradient)
  (context, floats(op, "dy", dy, of.results()), floats(op, "x", x, of.images()), of,
   floats(op, "dw", dw, of.weights()));
}

}  // namespace boost_ext
