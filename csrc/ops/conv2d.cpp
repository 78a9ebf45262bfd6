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

bool Convolution::in_tiles() const {
  const bool plain = p.kh == 3 && p.kw == 3 && p.sh == 1 && p.sw == 1 && p.dh == 1 && p.dw == 1 && groups == 1;
  return plain && p.top <= 2 && p.left <= 2 && p.c >= 16 && outputs >= 16;
}

// With so many pairs of channels in a group, or weights.
bool Convolution::in_products() const {
  const std::int64_t channels = p.c / groups, window = p.kh * p.kw;
  return channels * outputs / groups > 1024 || channels * window > 300 || (channels > 1 && window > 25);
}

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
