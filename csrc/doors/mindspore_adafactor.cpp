// Adafactor inside MindSpore: see step_layout.h.
#include "doors/step_layout.h"
#include "ops/adafactor_step.h"

namespace boost_ext {

void adafactor_step(Reader& in, const StepHead& head) {
  const char* op = "adafactor_step";
  const std::int64_t n = head.layout.count;
  require_size(op, "hyper", head.hyper, 9);
  require(head.ratio->size == 1 && *static_cast<const float*>(head.ratio->data) == 1, op,
          ": ratio must be 1, got others: an Adafactor step does not depend on the size of a gradient");
  AdaFactorSettings settings = adafactor_settings(head.numbers(), 8);
  settings.scale = head.scale;
  settings.step = std::int64_t{*head.step} + 1;
  auto* counter = in.written<float>("powers", DType::f32);
  for (const TensorNumbers& tensor : head.layout.tensors) {
    if (!settings.relative_step) settings.lr.push_back(head.lr.of(op, tensor));
    settings.decay.push_back(head.decay.of(op, tensor));
    settings.centralize.push_back(tensor.is_centralized != 0);
  }
  AdaFactorTensors tensors;
  tensors.weights = in.list("weights", n);
  tensors.masters = head.masters(in);
  tensors.grads = in.list("grads", n);
  tensors.rows.resize(tensors.weights.size());
  tensors.columns.resize(tensors.weights.size());
  tensors.squares.resize(tensors.weights.size());
  for (std::size_t i = 0; i < tensors.weights.size(); ++i) {
    if (tensors.weights[i].ndim < 2) {
      tensors.squares[i] = in.take("squares");
    } else {
      tensors.rows[i] = in.take("rows");
      tensors.columns[i] = in.take("columns");
    }
  }
  if (head.layout.states > 0) tensors.moments = in.list("moments", n);
  in.require_end();
  require_shapes(op, tensors.grads, tensors.weights);
  require_cpu(op, {&tensors.weights});
  adafactor_step(cpu_context(), settings, tensors);
  *head.step = static_cast<std::int32_t>(settings.step);
  *counter = static_cast<float>(settings.step);
}

}  // namespace boost_ext
