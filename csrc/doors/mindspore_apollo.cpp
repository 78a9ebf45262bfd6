// Apollo inside MindSpore: see step_layout.h.
#include "doors/step_layout.h"
#include "ops/apollo_step.h"

namespace boost_ext {

void apollo_step(Reader& in, const StepHead& head) {
  const char* op = "apollo_step";
  const std::int64_t n = head.layout.count;
  require_size(op, "hyper", head.hyper, 8);
  require(head.layout.states == 2, op, ": layout must have two states, got ", head.layout.states);
  require(head.ratio->size == 1, op, ": ratio must hold 1 number, got ", head.ratio->size);
  const double* x = head.numbers();
  ApolloSettings settings = apollo_settings(x, 4);
  settings.seed = head.layout.seed;
  settings.step.hyper.assign(x + 4, x + 7);
  settings.step.scale = head.scale;
  settings.step.step = std::int64_t{*head.step} + 1;
  settings.step.ratio = {*static_cast<const float*>(head.ratio->data)};
  for (const TensorNumbers& tensor : head.layout.tensors) {
    settings.step.lr.push_back(head.lr.of(op, tensor));
    settings.step.decay.push_back(head.decay.of(op, tensor));
    settings.step.centralize.push_back(tensor.is_centralized != 0);
    settings.numbers.push_back(tensor.special != 0 ? std::int64_t{tensor.special} - 1 : 0);
  }
  ApolloTensors tensors;
  tensors.weights = in.list("weights", n);
  tensors.masters = head.masters(in);
  tensors.grads = in.list("grads", n);
  tensors.first = in.list("moments1", n);
  tensors.second = in.list("moments2", n);
  for (const TensorNumbers& tensor : head.layout.tensors) {
    tensors.norms.push_back(tensor.special != 0 ? in.take("norms") : View());
  }
  in.require_end();
  require_cpu(op, {&tensors.weights});
  require_shapes(op, tensors.grads, tensors.weights);
  apollo_step(cpu_context(), settings, tensors);
  *head.step = static_cast<std::int32_t>(settings.step.step);
}

}  // namespace boost_ext
