// lars: how far the gradient of each tensor is stretched by LARS, as factors for optimizer_step.
//
//   r = coefficient |w| / (|scale g| + decay |w| + eps);   with clip, r = min(r / lr, 1)
//   ratio[i] = decay_ratio[i] = r where apply[i];   ratio[i] = 1 and decay_ratio[i] = 0 elsewhere
//
// so that optimizer_step, whose ready gradient is scale ratio g + decay_ratio decay w, steps on r (scale g + decay w).
// Source: You et al. 2017, "Large batch training of convolutional networks", algorithm 1, with eps in the denominator
// as in mindspore.nn.LARS. Where |w| or |g| is 0, r is 1: weights that start at 0 could never leave it otherwise.
//
// weights, grads  float32, float16 or bfloat16, of the same sizes; read. Norms are summed in float64
// ratio, decay_ratio  float32 (n,), written
// scale           a number, or one float32 on the device of the tensors, which is not checked
// inf in a gradient makes its ratio 0, nan makes it nan: check before, or skip.
#pragma once

#include "ops/runtime.h"
#include "ops/schema.h"

namespace boost_ext {

inline constexpr Arg kLarsArgs[] = {arrays("params", kFloats).any_order(),
                                    arrays("grads", kFloats).any_order().like("params"),
                                    real("coefficient", Range::non_negative),
                                    real("epsilon", Range::non_negative),
                                    flag("use_clip"),
                                    number("scale"),
                                    reals("lr"),
                                    reals("weight_decay"),
                                    integers("apply"),
                                    array("ratio", kF32).made(),
                                    array("decay_ratio", kF32).made()};
inline constexpr Schema kLars{"lars", kLarsArgs};

struct LarsSettings {
  double coefficient = 1e-3;
  double eps = 1e-5;
  bool clip = false;
  Number scale{1, {}};
  std::vector<float> lr;  // one a tensor, as the next two
  std::vector<float> decay;
  std::vector<unsigned char> apply;
};

void lars(const Context& context, const Views& weights, const Views& grads, double coefficient, double eps, bool clip,
          const Number& scale, const std::vector<float>& lr, const std::vector<float>& decay,
          const std::vector<unsigned char>& apply, const View& ratio, const View& decay_ratio);

BOOST_EXT_CUDA_KERNEL(lars, const Context&, const LarsSettings& settings, Tensors weights, Tensors grads, float* ratio,
                      float* decay_ratio)

}  // namespace boost_ext
