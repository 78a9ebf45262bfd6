// What the optimizers of matrices share (muon_step, apollo_step): tensors that are no matrices make the step of AdamW
// in the same call.
#pragma once

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

}  // namespace boost_ext
