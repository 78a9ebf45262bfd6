#include "ops/conv2d.h"

namespace boost_ext {
namespace {

struct Named {
  const char* name;
  const View& v;
  const float* floats() const { return static_cast<const float*>(v.data); }
};

// Of these images, outputs and weights, or std::invalid_argument.
Convolution convolution(const char* op, const std::vector<std::int32_t>& patches, std::int64_t groups, const Named& x,
                        const Named& y, const Named& w) {
  const Patches p = patches_of(op, patches);
  require_extents(op, p);
  const std::int64_t outputs = w.v.rows;
  require(groups >= 1 && p.c % groups == 0 && outputs % groups == 0, op, ": groups must divide ", p.c, " channels and ",
          outputs, " outputs, got ", groups);
  require_size(op, x.name, x.v, p.n * p.c * p.h * p.w);
  require_size(op, w.name, w.v, outputs * (p.c / groups) * p.kh * p.kw);
  require_size(op, y.name, y.v, p.n * outputs * p.oh * p.ow);
  return {p, groups, outputs};
}

}  // namespace

void conv2d(const Context& context, const View& x, const View& w, const std::vector<std::int32_t>& patches,
            std::int64_t groups, const View& y) {
  check(kConv2d, x, w, patches, groups, y);
  const Named images{"x", x}, weights{"w", w}, outputs{"y", y};
  const Convolution of = convolution(kConv2d.op, patches, groups, images, outputs, weights);
  BOOST_EXT_CPU(conv2d)(context, images.floats(), weights.floats(), of, static_cast<float*>(y.data));
}

void conv2d_input_gradient(const Context& context, const View& dy, const View& w,
                           const std::vector<std::int32_t>& patches, std::int64_t groups, const View& dx) {
  check(kConv2dInputGradient, dy, w, patches, groups, dx);
  const Named images{"dx", dx}, weights{"w", w}, outputs{"dy", dy};
  const Convolution of = convolution(kConv2dInputGradient.op, patches, groups, images, outputs, weights);
  BOOST_EXT_CPU(conv2d_input_gradient)
  (context, outputs.floats(), weights.floats(), of, static_cast<float*>(dx.data));
}

void conv2d_weight_gradient(const Context& context, const View& dy, const View& x,
                            const std::vector<std::int32_t>& patches, std::int64_t groups, const View& dw) {
  check(kConv2dWeightGradient, dy, x, patches, groups, dw);
  const Named images{"x", x}, weights{"dw", dw}, outputs{"dy", dy};
  const Convolution of = convolution(kConv2dWeightGradient.op, patches, groups, images, outputs, weights);
  BOOST_EXT_CPU(conv2d_weight_gradient)
  (context, outputs.floats(), images.floats(), of, static_cast<float*>(dw.data));
}

}  // namespace boost_ext
