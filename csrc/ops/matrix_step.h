// What the optimizers of matrices share (muon_step, apollo_step, galore_step): tensors that are no matrices make the
// step of AdamW in the same call.
#pragma once

#include <functional>

#include "ops/dropout.h"
#include "ops/optimizer_step.h"

namespace boost_ext {

// Of the settings: the number of the step, the scale, the rates, and AdamW's three hyperparameters, whose third has the
// name `eps`.
void require_shared_settings(const char* op, const StepSettings& s, const char* eps);

// The settings with one value a tensor, checked.
StepSettings spread_out(const char* op, const StepSettings& s, const Views& weights);

template <class T> std::vector<T> some_of(const std::vector<T>& all, const std::vector<std::size_t>& which) {
  std::vector<T> some;
  for (const std::size_t i : which) some.push_back(all[i]);
  return some;
}

struct MatrixTensors {
  Views weights, masters, grads, first, second;
};
// Floats, and as many as there are weights.
void require_lists(const char* op, const MatrixTensors& a);

// The tensors that AdamW steps, in a call of its own that has nothing left to refuse.
void step_others(const Context& context, const StepSettings& all, const MatrixTensors& a,
                 const std::vector<std::size_t>& which);

// The matrices as a kernel takes them.
struct MatrixLists {
  Views wide;    // float32: weights, or masters
  Views narrow;  // half weights beside their master; without data elsewhere
  std::vector<float> scale, keep;
  std::vector<unsigned char> centralize;

  MatrixLists(const StepSettings& all, const MatrixTensors& a, const std::vector<std::size_t>& which);
};

// Of those that project gradients (apollo_step, galore_step).
struct ProjectedSettings {
  double factor = 1;  // >= 0
  std::int64_t update_gap = 200;
  std::int64_t seed = 0;
  std::vector<std::int64_t> numbers;  // of the tensors; empty: 0, 1, ...
  StepSettings step;                  // of AdamW, whose hyperparameters are in it, and what matrices share with it
};
std::int64_t update_gap_of(double number);

struct ProjectedTensors : MatrixTensors {
  Views own;  // float32, written: what a matrix alone has. Empty where AdamW steps the tensor
};

// What a kernel sees: the matrices, none of them empty.
struct ProjectedStep {
  const ProjectedSettings* settings;
  Tensors weights;  // float32: weights, or masters
  Tensors narrow;   // half weights beside their master; without data elsewhere
  Tensors grads, first, second, own;
  const float* scale;
  const float* keep;  // of w
  const float* lr;
  const unsigned char* centralize;
  const DropoutKey* keys;  // by seed, number of the tensor, and (t-1) / update_gap
  const float* skip;       // on a device, or nothing
  Device device;
};

// Checks all, makes the steps of AdamW, and leaves the matrices to `kernel`. `own` is the name of what they alone have;
// moments(i) checks its size of tensor i, and returns that of a moment.
void projected_step(const char* op, const char* own, const Context& context, const ProjectedSettings& settings,
                    const ProjectedTensors& tensors, const std::function<std::int64_t(std::size_t)>& moments,
                    const std::function<void(const ProjectedStep&)>& kernel);

}  // namespace boost_ext
