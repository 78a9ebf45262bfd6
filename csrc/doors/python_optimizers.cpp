// The Python door of the optimizers.
#include "doors/packed_step.h"
#include "doors/python.h"
#include "ops/adafactor_step.h"
#include "ops/lars.h"
#include "ops/optimizer_step.h"

namespace py = pybind11;

namespace boost_ext {
namespace {

const char* state_name(const RuleFacts& rule, std::size_t index) {
  return index < kMaxStates && rule.state[index] != nullptr ? rule.state[index] : "state";
}

template <class... Settings>
void py_optimizer_step(const Object& weights, const Object& masters, const Object& grads, const Object& state,
                       const Object& scales, const std::string& rule, const Settings&... settings) {
  const Rule which = find_rule(rule);
  const RuleFacts& known = facts(which);
  Arrays a(known.op);
  const Views w = a.list("params", weights), g = a.list("grads", grads);
  const Views m = masters.is_none() ? Views() : a.list("masters", masters);
  std::vector<Views> s;
  for (py::handle item : state) s.push_back(a.list(state_name(known, s.size()), item));
  const std::vector<Views> c = scales.is_none() ? std::vector<Views>() : a.lists("scales", scales);
  const StepSettings all{which, settings..., {}};
  without_gil([&] { optimizer_step(a.context(), all, w, m, g, s, c); });
}

template <class... Settings>
void py_optimizer_step_rows(const Object& weights, const Object& master, const Object& indices, const Object& values,
                            const Object& state, const std::string& rule, const Settings&... settings) {
  const Rule which = find_rule(rule);
  const RuleFacts& known = facts(which);
  Arrays a(known.op);
  const View w = a.one("params", weights), i = a.one("indices", indices), v = a.one("grads", values);
  const View m = master.is_none() ? View() : a.one("masters", master);
  Views s;
  for (py::handle item : state) s.push_back(a.one(state_name(known, s.size()), item));
  const StepSettings all{which, settings..., {}};
  without_gil([&] { optimizer_step_rows(cpu_context(), all, w, m, i, v, s); });
}

constexpr const char* kFixedArrays = "boost_ext.FixedArrays";

py::capsule py_fixed_arrays(const Object& tensors) {
  const auto free = [](void* arrays) { delete static_cast<FixedArrays*>(arrays); };
  auto* arrays = new FixedArrays("optimizer_step", "tensors", tensors);
  return py::capsule(arrays, kFixedArrays, free);
}

// What comes from Python and what is always the same, in the order of the native call.
void py_packed_step(const py::args& parts) {
  Arrays a("optimizer_step");
  Views all;
  for (py::handle part : parts) {
    if (PyCapsule_IsValid(part.ptr(), kFixedArrays)) {
      static_cast<const FixedArrays*>(PyCapsule_GetPointer(part.ptr(), kFixedArrays))->append_to(all);
      continue;
    }
    const Views some = a.list("gradients", part);
    all.insert(all.end(), some.begin(), some.end());
  }
  require_cpu("optimizer_step", {&all});  // what is packed is read here
  without_gil([&] { packed_step(all); });
}

void py_lars(const Object& weights, const Object& grads, const Object& ratios, double coefficient, double epsilon,
             bool clip, double scale, const std::vector<float>& lr, const std::vector<float>& weight_decay,
             const std::vector<unsigned char>& apply) {
  Arrays a("lars");
  const Views w = a.list("weights", weights), g = a.list("grads", grads);
  const View r = a.one("ratios", ratios);
  const LarsSettings settings{coefficient, epsilon, clip, scale, lr, weight_decay, apply};
  without_gil([&] { lars(cpu_context(), settings, w, g, r); });
}

void py_packed_lars(const Object& arrays) {
  Arrays a("lars");
  const Views all = a.list("arrays", arrays);
  require_cpu("lars", {&all});
  without_gil([&] { packed_lars(all); });
}

void py_adafactor_step(const Object& params, const Object& masters, const Object& grads, const Object& rows,
                       const Object& columns, const Object& squares, const Object& moments,
                       const std::vector<double>& hyper, double scale, std::int64_t step, const std::vector<float>& lr,
                       const std::vector<float>& decay, const std::vector<unsigned char>& centralize) {
  Arrays a("adafactor_step");
  require(hyper.size() == 8, "adafactor_step: hyper must hold 8 numbers, got ", hyper.size());
  const AdaFactorSettings settings{hyper[0],      hyper[1], hyper[2], hyper[3], hyper[4], hyper[5] != 0, hyper[6] != 0,
                                   hyper[7] != 0, scale,    step,     lr,       decay,    centralize};
  AdaFactorTensors tensors;
  tensors.weights = a.list("params", params);
  if (!masters.is_none()) tensors.masters = a.list("masters", masters);
  tensors.grads = a.list("grads", grads);
  tensors.rows = a.list("rows", rows);
  tensors.columns = a.list("columns", columns);
  tensors.squares = a.list("squares", squares);
  if (!moments.is_none()) tensors.moments = a.list("moments", moments);
  py::gil_scoped_release release;
  adafactor_step(cpu_context(), settings, tensors);
}

}  // namespace

void define_optimizers(py::module_& m) {
  using Floats = std::vector<float>;
  using Flags = std::vector<unsigned char>;
  m.def(
      "optimizer_step",
      &py_optimizer_step<std::vector<double>, double, std::int64_t, Floats, Floats, Floats, Flags, Flags, std::int64_t>,
      py::arg("weights"), py::arg("masters"), py::arg("grads"), py::arg("state"), py::arg("scales"), py::arg("rule"),
      py::arg("hyper"), py::arg("scale"), py::arg("step"), py::arg("lr"), py::arg("weight_decay"), py::arg("ratio"),
      py::arg("centralize"), py::arg("first"), py::arg("seed"));
  m.def("optimizer_step_rows",
        &py_optimizer_step_rows<std::vector<double>, double, std::int64_t, Floats, Floats, Floats, Flags, Flags,
                                std::int64_t>,
        py::arg("weights"), py::arg("master"), py::arg("indices"), py::arg("values"), py::arg("state"), py::arg("rule"),
        py::arg("hyper"), py::arg("scale"), py::arg("step"), py::arg("lr"), py::arg("weight_decay"), py::arg("ratio"),
        py::arg("centralize"), py::arg("first"), py::arg("seed"));
  m.def("fixed_arrays", &py_fixed_arrays, py::arg("tensors"));
  m.def("packed_step", &py_packed_step);
  m.def("packed_lars", &py_packed_lars, py::arg("arrays"));
  m.def("lars", &py_lars, py::arg("weights"), py::arg("grads"), py::arg("ratios"), py::arg("coefficient"),
        py::arg("epsilon"), py::arg("clip"), py::arg("scale"), py::arg("lr"), py::arg("weight_decay"),
        py::arg("apply"));
  m.def("optimizer_rules", &packed_rules);
  m.def("adafactor_step", &py_adafactor_step, py::arg("params"), py::arg("masters"), py::arg("grads"), py::arg("rows"),
        py::arg("columns"), py::arg("squares"), py::arg("moments"), py::arg("hyper"), py::arg("scale"), py::arg("step"),
        py::arg("lr"), py::arg("weight_decay"), py::arg("centralize"));
}

}  // namespace boost_ext
