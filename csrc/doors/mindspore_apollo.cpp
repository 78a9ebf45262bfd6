// Apollo and GaLore inside MindSpore: see step_layout.h.
#include "doors/step_layout.h"
#include "ops/apollo_step.h"
#include "ops/galore_step.h"

namespace boost_ext {
namespace {

// What follows the head, of which the first `own_numbers` in hyper are read: the other settings, and the tensors.
ProjectedTensors read_projected(const char* op, const char* own, Reader& in, const StepHead& head,
                                std::int64_t own_numbers, ProjectedSettings& settings) {
  const std::int64_t n = head.layout.count;
  require(head.layout.states == 2, op, ": layout must have two states, got ", head.layout.states);
  require(head.ratio->size == 1, op, ": ratio must hold 1 number, got ", head.ratio->size);
  const double* adamw = head.numbers() + own_numbers;
  settings.seed = head.layout.seed;
  settings.step.hyper.assign(adamw, adamw + 3);
  settings.step.scale = head.scale;
  settings.step.step = std::int64_t{*head.step} + 1;
  settings.step.ratio = {*static_cast<const float*>(head.ratio->data)};
  for (const TensorNumbers& tensor : head.layout.tensors) {
    settings.step.lr.push_back(head.lr.of(op, tensor));
    settings.step.decay.push_back(head.decay.of(op, tensor));
    settings.step.centralize.push_back(tensor.is_centralized != 0);
    settings.numbers.push_back(tensor.special != 0 ? std::int64_t{tensor.special} - 1 : 0);
  }
  ProjectedTensors tensors;
  tensors.weights = in.list("weights", n);
  tensors.masters = head.masters(in);
  tensors.grads = in.list("grads", n);
  tensors.first = in.list("moments1", n);
  tensors.second = in.list("moments2", n);
  for (const TensorNumbers& tensor : head.layout.tensors) {
    tensors.own.push_back(tensor.special != 0 ? in.take(own) : View());
  }
  in.require_end();
  require_cpu(op, {&tensors.weights});
  require_shapes(op, tensors.grads, tensors.weights);
  return tensors;
}

}  // namespace

void apollo_step(Reader& in, const StepHead& head) {
  require_size("apollo_step", "hyper", head.hyper, 8);
  ApolloSettings settings = apollo_settings(head.numbers(), 4);
  const ProjectedTensors tensors = read_projected("apollo_step", "norms", in, head, 4, settings);
  apollo_step(cpu_context(), settings, tensors);
  *head.step = static_cast<std::int32_t>(settings.step.step);
}

void galore_step(Reader& in, const StepHead& head) {
  require_size("galore_step", "hyper", head.hyper, 6);
  ProjectedSettings settings = galore_settings(head.numbers(), 2);
  const ProjectedTensors tensors = read_projected("galore_step", "projections", in, head, 2, settings);
  galore_step(cpu_context(), settings, tensors);
  *head.step = static_cast<std::int32_t>(settings.step.step);
}

}  // namespace boost_ext
