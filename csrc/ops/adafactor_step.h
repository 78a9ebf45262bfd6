// adafactor_step: one step of Adafactor (Shazeer and Stern 2018, algorithms 4 and 5) over a list of tensors.
//
//   u   = scale * g                              unscaled; minus its mean over all axes but the first where
//   centralize[i] b   = 1 - t^-decay_rate                      t is the number of this step, from 1 R   = b R + (1-b)
//   (mean over the last axis of u^2 + eps1)             tensors of two axes and more: each pair of the C   = b C +
//   (1-b) (mean over the last axis but one of u^2 + eps1)     last two axes is a matrix of its own V   = R C / mean(R
//   over the last axis) V   = b V + (1-b) (u^2 + eps1)               tensors of fewer axes U   = u / sqrt(V);  U = U /
//   max(1, RMS(U) / clip_threshold)           RMS over the tensor a   = rate * max(eps2, RMS(w))               with
//   scale_parameter, else rate m   = beta1 m + (1-beta1) a U                with a first moment, else m = a U w   = w -
//   a decay w - m
//
// rate is lr, or with relative_step min(1e-2, 1/sqrt(t)), with warmup_init min(1e-6 t, 1/sqrt(t)). Arithmetic is
// float32; sums and what is made of R and C is float64. R and C take height and width elements in the place of height *
// width. What is stored as float16 is used as it was before it was rounded; V saturates at the largest float16.
//
// weights, masters, grads   as for optimizer_step; no split masters
// rows, columns  float32, written; R and C of tensors of two axes and more: their shape without the last axis, and
//                without the last but one. Beside other tensors whatever it is, it is left alone.
// squares        float32 or float16, written; V of the other tensors, of their size
// moments        nothing, or float32 or float16 of the weights' sizes, written; exactly if beta1 > 0
// Written tensors must not overlap one another or anything. Empty and 0-d tensors are fine. One inf or nan in a
// gradient makes the whole tensor nan, since it is in the RMS: check before, or skip.
// skip      nothing, or one float32: where it is not 0, nothing is written
#pragma once

#include "ops/runtime.h"

namespace boost_ext {

// A vector of one value holds for all tensors.
struct AdaFactorSettings {
  double eps1 = 1e-30, eps2 = 1e-3;
  double clip_threshold = 1;
  double decay_rate = 0.8;
  double beta1 = 0;  // 0: without first moment
  bool scale_parameter = true;
  bool relative_step = true;
  bool warmup_init = false;
  double scale = 1;       // 1 / loss scale
  std::int64_t step = 1;  // t
  std::vector<float> lr;  // none with relative_step, else one, or one a tensor
  std::vector<float> decay;
  std::vector<unsigned char> centralize;
};

struct AdaFactorTensors {
  Views weights, masters, grads, rows, columns, squares, moments;
};

void adafactor_step(const Context& context, const AdaFactorSettings& settings, const AdaFactorTensors& tensors,
                    const View& skip = {});

// From numbers in the order of the members up to warmup_init: what doors have.
AdaFactorSettings adafactor_settings(const double* numbers, std::size_t count);

// What a kernel sees: everything a list of one value a tensor.
struct AdaFactorStep {
  const AdaFactorSettings* settings;
  double beta2;     // b
  Tensors weights;  // float32: weights, or masters
  Tensors narrow;   // half weights beside their master; without data elsewhere
  Tensors grads, rows, columns, squares;
  const View* moments;  // or nothing
  const float* rate;
  const float* decay;
  const unsigned char* centralize;
  const float* skip;  // on a device, or nothing
};

BOOST_EXT_CPU_KERNEL(void, adafactor_step, const Context&, const AdaFactorStep&)
BOOST_EXT_CUDA_KERNEL(adafactor_step, const Context&, const AdaFactorStep&)

}  // namespace boost_ext
