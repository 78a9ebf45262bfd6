// muon_step: one step of Muon over a list of tensors: matrices by the orthogonalized momentum, the others by AdamW.
//
//   u = scale * ratio[i] * g             minus its mean over all axes but the first where centralize[i]
//   m = mu m + (1-mu) u
//   O = orthogonalize(nesterov ? mu m + (1-mu) u : m)
//   w = (1 - lr decay) w - lr s O        s = sqrt(max(1, rows / columns)), or with match_rms 0.2 sqrt(max(rows,
//   columns))
//
// Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024; match_rms after Liu et al., "Muon is
// scalable for LLM training", 2025, eq. 4, with which a matrix moves as far as by AdamW. A tensor of more than two axes
// is the matrix of its first axis by all others. Arithmetic is float32; iteration and norm are those of orthogonalize,
// on CUDA with TF32 products of large matrices if it is allowed, on a CPU with products of medium precision.
// A tensor with a second moment makes the step of AdamW in optimizer_step, by the same lr, decay, scale and ratio.
//
// weights, masters, grads   as for optimizer_step, in C order; no split masters
// first   float32 of the weights' sizes, written: m
// second  float32 of the size of its weight, written: of AdamW. Empty where the tensor is a matrix, which it can be
//         with two axes and more.
// Written tensors must not overlap one another or anything. Empty and 0-d tensors are fine. One inf or nan in the
// gradient of a matrix makes all of it nan: check before, or skip. Of settings.step, scale, step, lr, decay and ratio
// are numbers, and its array `skip` may be given.
#pragma once

#include "ops/matrix_step.h"
#include "ops/runtime.h"

namespace boost_ext {

struct MuonSettings {
  double momentum = 0.95;
  bool nesterov = true;
  std::int64_t iterations = 5;
  double eps = 1e-7;  // beside the norm
  bool match_rms = false;
  bool allow_tf32 = false;  // of large products on CUDA: factors rounded to 11 bits, for tensor cores
  StepSettings step;        // of AdamW, whose hyperparameters are in it, and what matrices share with it
};

void muon_step(const Context& context, const MuonSettings& settings, const MatrixTensors& tensors);

// From numbers in the order of the members, of which the last one may be left out: what doors have.
MuonSettings muon_settings(const double* numbers, std::size_t count);

// What a kernel sees: the matrices.
struct MuonStep {
  const MuonSettings* settings;
  Tensors weights;  // float32: weights, or masters
  Tensors narrow;   // half weights beside their master; without data elsewhere
  Tensors grads, moments;
  const float* scale;
  const float* keep;  // of w
  const float* rate;  // of O
  const unsigned char* centralize;
  const float* skip;  // on a device, or nothing
};

BOOST_EXT_CPU_KERNEL(void, muon_step, const Context&, const MuonStep&)
BOOST_EXT_CUDA_KERNEL(muon_step, const Context&, const MuonStep&)

}  // namespace boost_ext
