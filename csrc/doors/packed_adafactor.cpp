#include "doors/packed_reader.h"
#include "ops/adafactor_step.h"

namespace boost_ext {

void packed_adafactor(Reader& in, const PackedHead& head) {
  const char* op = "adafactor_step";
  const auto n = static_cast<std::size_t>(head.n);
  require_size(op, "hyper", head.hyper, 9);
  require(head.ratio->size == 1 && *static_cast<const float*>(head.ratio->data) == 1, op,
          ": ratio must be 1, got others: an Adafactor step does not depend on the size of a gradient");
  const double* x = head.numbers();
  AdaFactorSettings settings{x[0],      x[1],       x[2],       x[3], x[4], x[5] != 0, x[6] != 0,
                             x[7] != 0, head.scale, *head.step, {},   {},   {}};
  ++settings.step;
  auto* counter = in.written<float>("powers", DType::f32);
  for (std::size_t i = 0; i < n; ++i) {
    const auto at = static_cast<std::int64_t>(i);
    if (!settings.relative_step) settings.lr.push_back(of_group(op, head.lr, head.header, at));
    settings.decay.push_back(of_group(op, head.decay, head.header, at));
    settings.centralize.push_back(head.of_tensor(at, 1) != 0);
  }
  AdaFactorTensors tensors;
  tensors.weights = in.list("weights", head.n);
  tensors.masters = head.masters(in);
  tensors.grads = in.list("grads", head.n);
  tensors.rows.resize(n), tensors.columns.resize(n), tensors.squares.resize(n);
  for (std::size_t i = 0; i < n; ++i) {
    if (tensors.weights[i].ndim < 2) {
      tensors.squares[i] = in.take("squares");
    } else {
      tensors.rows[i] = in.take("rows");
      tensors.columns[i] = in.take("columns");
    }
  }
  if (head.states > 0) tensors.moments = in.list("moments", head.n);
  in.require_end();
  require_shapes(op, tensors.grads, tensors.weights);
  require_cpu(op, {&tensors.weights});
  adafactor_step(cpu_context(), settings, tensors);
  *head.step = static_cast<std::int32_t>(settings.step);
  *counter = static_cast<float>(settings.step);
}

}  // namespace boost_ext
