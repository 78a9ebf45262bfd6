// Muon inside MindSpore: see step_layout.h.
#include "doors/step_layout.h"
#include "ops/muon_step.h"

namespace boost_ext {

void muon_step(Reader& in, const StepHead& head) {
  const char* op = "muon_step";
  const std::int64_t n = head.layout.count;
  require_size(op, "hyper", head.hyper, 9);
  require(head.layout.states == 1, op, ": layout must have one state, got ", head.layout.states);
  require(head.ratio->size == 1 && *static_cast<const float*>(head.ratio->data) == 1, op,
          ": ratio must be 1, got others: a Muon step does not depend on the size of a gradient");
  const double* x = head.numbers();
  MuonSettings settings = muon_settings(x, 5);
  settings.step.hyper.assign(x + 5, x + 8);
  settings.step.scale = head.scale;
  settings.step.step = std::int64_t{*head.step} + 1;
  for (const TensorNumbers& tensor : head.layout.tensors) {
    settings.step.lr.push_back(head.lr.of(op, tensor));
    settings.step.decay.push_back(head.decay.of(op, tensor));
    settings.step.centralize.push_back(tensor.is_centralized != 0);
  }
  MatrixTensors tensors;
  tensors.weights = in.list("weights", n);
  tensors.masters = head.masters(in);
  tensors.grads = in.list("grads", n);
  tensors.first = in.list("moments1", n);
  for (const TensorNumbers& tensor : head.layout.tensors) {
    tensors.second.push_back(tensor.special != 0 ? View() : in.take("moments2"));
  }
  in.require_end();
  require_shapes(op, tensors.grads, tensors.weights);
  require_cpu(op, {&tensors.weights});
  muon_step(cpu_context(), settings, tensors);
  *head.step = static_cast<std::int32_t>(settings.step.step);
}

}  // namespace boost_ext
