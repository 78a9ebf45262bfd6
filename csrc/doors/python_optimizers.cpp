// The Python door of the optimizers.
#include <cmath>

#include "doors/arrays.h"
#include "doors/python.h"
#include "doors/step_layout.h"
#include "ops/adafactor_step.h"
#include "ops/apollo_step.h"
#include "ops/galore_step.h"
#include "ops/muon_step.h"
#include "ops/optimizer_step.h"

namespace py = pybind11;

namespace boost_ext {
namespace {

const char* state_name(const RuleFacts& rule, std::size_t index) {
  return index < kMaxStates && rule.state[index] != nullptr ? rule.state[index] : "state";
}

// Numbers as they come from Python, one a tensor; or an array of them, as it lies.
struct Floats {
  std::vector<float> known;
  View at;
  Floats(Arrays& a, const char* arg, const Object& value) {
    if (PyList_Check(value.ptr()))
      known = value.cast<std::vector<float>>();
    else
      at = a.one(arg, value);
  }
};

StepSettings step_settings(Arrays& a, Rule rule, std::vector<double> hyper, const Object& scale, const Object& step,
                           const Object& lr, const Object& decay, const Object& ratio,
                           std::vector<unsigned char> centralize, std::vector<unsigned char> first, std::int64_t seed,
                           const Object& skip) {
  StepSettings s;
  s.rule = rule;
  s.hyper = std::move(hyper);
  if (PyFloat_Check(scale.ptr()))
    s.scale = scale.cast<double>();
  else
    s.at.scale = a.one("inv_scale", scale);
  s.step = 0;
  if (PyLong_Check(step.ptr()))
    s.step = step.cast<std::int64_t>();
  else
    s.at.step = a.one("step", step);
  const Floats rates(a, "lr", lr), decays(a, "weight_decay", decay), ratios(a, "ratio", ratio);
  s.lr = rates.known;
  s.decay = decays.known;
  s.ratio = ratios.known;
  s.at.lr = rates.at;
  s.at.decay = decays.at;
  s.at.ratio = ratios.at;
  s.centralize = std::move(centralize);
  s.first = std::move(first);
  s.seed = seed;
  if (!skip.is_none()) s.at.skip = a.one("skip", skip);
  return s;
}

template <class... Settings>
void py_optimizer_step(const Object& weights, const Object& masters, const Object& grads, const Object& state,
                       const Object& scales, const std::string& rule, const Settings&... settings) {
  const Rule which = find_rule(rule);
  const RuleFacts& known = facts(which);
  Arrays a(known.op);
  constexpr unsigned kUpdated = kWritten | kAnyOrder;
  const Views w = a.list("params", weights, kUpdated), g = a.list("grads", grads, kAnyOrder);
  const Views m = a.list_or_none("masters", masters, kUpdated);
  std::vector<Views> s;
  for (py::handle item : state) s.push_back(a.list(state_name(known, s.size()), item, kUpdated));
  const std::vector<Views> c = scales.is_none() ? std::vector<Views>() : a.lists("scales", scales, kWritten);
  const StepSettings all = step_settings(a, which, settings...);
  a.run([&] { optimizer_step(a.context(), all, w, m, g, s, c); });
}

template <class... Settings>
void py_optimizer_step_rows(const Object& weights, const Object& master, const Object& indices, const Object& values,
                            const Object& state, const std::string& rule, const Settings&... settings) {
  const Rule which = find_rule(rule);
  const RuleFacts& known = facts(which);
  Arrays a(known.op);
  const View w = a.one("params", weights, kWritten), i = a.one("indices", indices), v = a.one("grads", values);
  const View m = master.is_none() ? View() : a.one("masters", master, kWritten);
  Views s;
  for (py::handle item : state) s.push_back(a.one(state_name(known, s.size()), item, kWritten));
  const StepSettings all = step_settings(a, which, settings...);
  a.run([&] { optimizer_step_rows(a.context(), all, w, m, i, v, s); });
}

void py_adafactor_step(const Object& params, const Object& masters, const Object& grads, const Object& rows,
                       const Object& columns, const Object& squares, const Object& moments,
                       const std::vector<double>& hyper, double scale, std::int64_t step, const std::vector<float>& lr,
                       const std::vector<float>& decay, const std::vector<unsigned char>& centralize,
                       const Object& skip) {
  Arrays a("adafactor_step");
  AdaFactorSettings settings = adafactor_settings(hyper.data(), hyper.size());
  settings.scale = scale;
  settings.step = step;
  settings.lr = lr;
  settings.decay = decay;
  settings.centralize = centralize;
  AdaFactorTensors tensors;
  tensors.weights = a.list("params", params, kWritten);
  if (!masters.is_none()) tensors.masters = a.list("masters", masters, kWritten);
  tensors.grads = a.list("grads", grads);
  tensors.rows = a.list("rows", rows, kWritten);
  tensors.columns = a.list("columns", columns, kWritten);
  tensors.squares = a.list("squares", squares, kWritten);
  if (!moments.is_none()) tensors.moments = a.list("moments", moments, kWritten);
  const View flag = skip.is_none() ? View() : a.one("skip", skip);
  a.run([&] { adafactor_step(a.context(), settings, tensors, flag); });
}

// What the optimizers of matrices share.
StepSettings matrix_settings(StepSettings given, const std::vector<double>& adamw, double scale, std::int64_t step,
                             const std::vector<float>& lr, const std::vector<float>& decay,
                             const std::vector<float>& ratio, const std::vector<unsigned char>& centralize) {
  given.hyper = adamw;
  given.scale = scale;
  given.step = step;
  given.lr = lr;
  given.decay = decay;
  given.ratio = ratio;
  given.centralize = centralize;
  return given;
}
MatrixTensors matrix_tensors(Arrays& a, const Object& params, const Object& masters, const Object& grads,
                             const Object& first, const Object& second) {
  MatrixTensors tensors;
  tensors.weights = a.list("params", params, kWritten);
  if (!masters.is_none()) tensors.masters = a.list("masters", masters, kWritten);
  tensors.grads = a.list("grads", grads);
  tensors.first = a.list("moments1", first, kWritten);
  tensors.second = a.list("moments2", second, kWritten);
  return tensors;
}

void py_muon_step(const Object& params, const Object& masters, const Object& grads, const Object& first,
                  const Object& second, const std::vector<double>& hyper, const std::vector<double>& adamw,
                  double scale, std::int64_t step, const std::vector<float>& lr, const std::vector<float>& decay,
                  const std::vector<float>& ratio, const std::vector<unsigned char>& centralize, const Object& skip) {
  Arrays a("muon_step");
  MuonSettings settings = muon_settings(hyper.data(), hyper.size());
  settings.step = matrix_settings(settings.step, adamw, scale, step, lr, decay, ratio, centralize);
  const MatrixTensors tensors = matrix_tensors(a, params, masters, grads, first, second);
  if (!skip.is_none()) settings.step.at.skip = a.one("skip", skip);
  a.run([&] { muon_step(a.context(), settings, tensors); });
}

// The function of an optimizer that projects, by what makes its settings.
template <class Settings>
void define_projected(py::module_& m, const char* op, const char* own,
                      void (*step)(const Context&, const Settings&, const ProjectedTensors&),
                      Settings (*settings)(const double*, std::size_t)) {
  m.def(
      op,
      [=](const std::vector<double>& hyper, const Object& params, const Object& masters, const Object& grads,
          const Object& owned, const Object& first, const Object& second, const std::vector<double>& adamw,
          std::int64_t seed, const std::vector<std::int64_t>& numbers, double scale, std::int64_t number,
          const std::vector<float>& lr, const std::vector<float>& decay, const std::vector<float>& ratio,
          const std::vector<unsigned char>& centralize, const Object& skip) {
        Arrays a(op);
        Settings all = settings(hyper.data(), hyper.size());
        all.seed = seed;
        all.numbers = numbers;
        all.step = matrix_settings(all.step, adamw, scale, number, lr, decay, ratio, centralize);
        ProjectedTensors tensors{matrix_tensors(a, params, masters, grads, first, second), {}};
        tensors.own = a.list(own, owned, kWritten);
        if (!skip.is_none()) all.step.at.skip = a.one("skip", skip);
        a.run([&] { step(a.context(), all, tensors); });
      },
      py::arg("hyper"), py::arg("params"), py::arg("masters"), py::arg("grads"), py::arg(own), py::arg("moments1"),
      py::arg("moments2"), py::arg("adamw"), py::arg("seed"), py::arg("numbers"), py::arg("scale"), py::arg("step"),
      py::arg("lr"), py::arg("weight_decay"), py::arg("ratio"), py::arg("centralize"), py::arg("skip"));
}

// In the order of Bound. boost_ext/ms/optim/arguments.py checks by them.
constexpr const char* kBoundNames[] = {"finite",   "flag",     "unit",         "open_unit",
                                       "fraction", "positive", "non_negative", "non_positive"};

// The row of a rule: its hyperparameters with their defaults, or None where it has none, and with the names of their
// bounds, its states, and what it does.
py::dict rule_facts(const std::string& rule) {
  const RuleFacts& known = facts(find_rule(rule));
  py::dict hyper, bounds;
  for (int i = 0; i < hyper_count(known); ++i) {
    const Hyper& h = known.hyper[i];
    bounds[h.name] = kBoundNames[static_cast<int>(h.bound)];
    if (std::isnan(h.standard))
      hyper[h.name] = py::none();
    else
      hyper[h.name] = h.bound == Bound::flag ? py::object(py::bool_(h.standard != 0)) : py::float_(h.standard);
  }
  py::list states;
  for (int i = 0; i < known.max_states; ++i) states.append(known.state[i]);
  using namespace pybind11::literals;
  return py::dict("hyper"_a = hyper, "bounds"_a = bounds, "states"_a = states,
                  "optional_states"_a = known.max_states - known.min_states, "decoupled"_a = known.decoupled,
                  "narrow_state"_a = known.narrow_state, "corrected"_a = known.corrected);
}

}  // namespace

void define_optimizers(py::module_& m) {
  using Flags = std::vector<unsigned char>;
  m.def("optimizer_step",
        &py_optimizer_step<std::vector<double>, Object, Object, Object, Object, Object, Flags, Flags, std::int64_t,
                           Object>,
        py::arg("weights"), py::arg("masters"), py::arg("grads"), py::arg("state"), py::arg("scales"), py::arg("rule"),
        py::arg("hyper"), py::arg("scale"), py::arg("step"), py::arg("lr"), py::arg("weight_decay"), py::arg("ratio"),
        py::arg("centralize"), py::arg("first"), py::arg("seed"), py::arg("skip") = py::none());
  m.def("optimizer_step_rows",
        &py_optimizer_step_rows<std::vector<double>, Object, Object, Object, Object, Object, Flags, Flags, std::int64_t,
                                Object>,
        py::arg("weights"), py::arg("master"), py::arg("indices"), py::arg("values"), py::arg("state"), py::arg("rule"),
        py::arg("hyper"), py::arg("scale"), py::arg("step"), py::arg("lr"), py::arg("weight_decay"), py::arg("ratio"),
        py::arg("centralize"), py::arg("first"), py::arg("seed"), py::arg("skip") = py::none());
  m.def("optimizer_rules", &layout_rules);
  m.def("rule_facts", &rule_facts, py::arg("rule"));
  m.def("adafactor_step", &py_adafactor_step, py::arg("params"), py::arg("masters"), py::arg("grads"), py::arg("rows"),
        py::arg("columns"), py::arg("squares"), py::arg("moments"), py::arg("hyper"), py::arg("scale"), py::arg("step"),
        py::arg("lr"), py::arg("weight_decay"), py::arg("centralize"), py::arg("skip"));
  m.def("muon_step", &py_muon_step, py::arg("params"), py::arg("masters"), py::arg("grads"), py::arg("moments1"),
        py::arg("moments2"), py::arg("hyper"), py::arg("adamw"), py::arg("scale"), py::arg("step"), py::arg("lr"),
        py::arg("weight_decay"), py::arg("ratio"), py::arg("centralize"), py::arg("skip"));
  define_projected(m, "apollo_step", "norms", &apollo_step, &apollo_settings);
  define_projected(m, "galore_step", "projections", &galore_step, &galore_settings);
}

}  // namespace boost_ext
