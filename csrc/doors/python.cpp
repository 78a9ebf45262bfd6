// The Python door: one definition an op. It converts arguments, releases the GIL and calls; the checks are the ops'.
// Users read boost_ext.ops, which documents every function.
#include "doors/python.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "doors/cuda_arrays.h"
#include "doors/from_schema.h"
#include "doors/plain_ops.h"
#include "ops/accumulate.h"
#include "ops/adasum.h"
#include "ops/centralize.h"
#include "ops/clip_by_global_norm.h"
#include "ops/dim_reduce.h"
#include "ops/global_norm.h"
#include "ops/loss_scale_update.h"
#include "ops/pca_back_project.h"
#include "ops/pca_project.h"
#include "ops/runtime.h"
#include "ops/tensor_statistics.h"
#include "ops/unscale_and_check.h"

namespace py = pybind11;
using namespace boost_ext;

namespace {

Object py_pca_project(const Object& P, const Object& grads, const Object& out, const Object& scale) {
  Arrays a("pca_project");
  const View p = a.one("P", P);
  const Views g = a.list("grads", grads);
  Object result;
  const View s = a.one_or_none("scale", scale);
  const View o = a.result("out", out, DType::f32, {p.ndim == 2 ? p.rows : 1}, result);
  a.run([&] { pca_project(a.context(), p, g, o, s); });
  return result;
}

void py_pca_back_project(const Object& P, const Object& vectors, const Object& out, const Object& scale) {
  Arrays a("pca_back_project");
  const View p = a.one("P", P);
  const Views v = a.list("vectors", vectors);
  const std::vector<Views> o = a.lists("out", out, kWritten);
  const View s = a.one_or_none("scale", scale);
  a.run([&] { pca_back_project(a.context(), p, v, o, s); });
}

Object py_adasum_dots(const Object& x, const Object& y, const Object& out) {
  Arrays args("adasum_dots");
  const Views a = args.list("a", x, kAnyOrder), b = args.list("b", y, kAnyOrder);
  Object result;
  const View d = args.result("out", out, DType::f64, {static_cast<std::int64_t>(a.size()), 3}, result);
  args.run([&] { adasum_dots(args.context(), a, b, d); });
  return result;
}

Object py_adasum_combine(const Object& x, const Object& y, const Object& dots, const Object& out) {
  Arrays args("adasum_combine");
  const Views a = args.list("a", x, kAnyOrder), b = args.list("b", y, kAnyOrder);
  Object result;
  const Views o = args.results("out", out, x, a, result, kAnyOrder);
  const View d = args.one("dots", dots);
  args.run([&] { adasum_combine(args.context(), a, b, d, o); });
  return result;
}

Object py_adasum_pair(const Object& x, const Object& y, const Object& out) {
  Arrays args("adasum_pair");
  const Views a = args.list("a", x, kAnyOrder), b = args.list("b", y, kAnyOrder);
  Object result;
  const Views o = args.results("out", out, x, a, result, kAnyOrder);
  args.run([&] { adasum_pair(args.context(), a, b, o); });
  return result;
}

// The flag; with `report` a pair of it and the rows.
Object py_unscale_and_check(const Object& grads, const Object& inv_scale, bool report, const Object& out) {
  Arrays a(kUnscaleAndCheck.op);
  const bool writes = !PyFloat_Check(inv_scale.ptr()) || static_cast<float>(inv_scale.cast<double>()) != 1;
  const Views g = a.list("grads", grads, writes ? kWritten | kAnyOrder : kAnyOrder);
  const Number factor = a.number("inv_scale", inv_scale);
  require(!report || !a.on_ascend(), "unscale_and_check: report must be False for Ascend tensors, got True");
  const FromPython<View> found(a, kUnscaleAndCheckArgs[3], out);
  Object rows = py::none();
  const View r =
      report ? a.result("report", py::none(), DType::f64, {static_cast<std::int64_t>(g.size()), 4}, rows) : View{};
  a.run([&] { unscale_and_check(a.context(), g, factor, r, found.value); });
  return report ? Object(py::make_tuple(found.answer(), rows)) : found.answer();
}

Object py_tensor_statistics(const Object& tensors, const Object& scale, const Object& out) {
  Arrays a(kTensorStatistics.op);
  const Views t = a.list("tensors", tensors, kAnyOrder);
  const Number s = a.number("scale", scale);
  Object result;
  const View o = a.result("out", out, DType::f64, {static_cast<std::int64_t>(t.size()), kStatistics}, result);
  a.run([&] { tensor_statistics(a.context(), t, s, o); });
  return result;
}

void py_centralize(const Object& grads, const Object& out) {
  Arrays a("centralize");
  const Views g = a.list("grads", grads, out.is_none() ? kWritten : kRead);
  if (out.is_none()) return a.run([&] { centralize(a.context(), g); });
  const Views o = a.list("out", out, kWritten);
  a.run([&] { centralize(a.context(), g, o); });
}

Factors factors(Arrays& a, const char* arg, const Object& object) {
  if (py::isinstance<py::float_>(object)) return object.cast<float>();
  return a.one(arg, object);
}

void py_dim_reduce_trial(const Object& weights, const Object& saved, const Object& dn, const Object& step, bool save) {
  Arrays a("dim_reduce_trial");
  const Views w = a.list("weights", weights, kWritten), s = a.list("saved", saved, save ? kWritten : kRead),
              d = a.list("dn", dn);
  const Factors f = factors(a, "step", step);
  a.run([&] { dim_reduce_trial(a.context(), w, s, d, f, save); });
}

void py_dim_reduce_apply(const Object& momentum, const Object& grads, const Object& grad_proj, const Object& dn,
                         const Object& out, double gamma, double alpha, const Object& rho, const Object& inv_scale,
                         const Object& saved, const Object& lr) {
  Arrays a("dim_reduce_apply");
  const Views m = a.list("momentum", momentum, kWritten), g = a.list("grads", grads),
              p = a.list("grad_proj", grad_proj), d = a.list("dn", dn);
  const DimReduceCoefficients c{gamma, alpha, a.number("rho", rho), a.number("inv_scale", inv_scale)};
  if (saved.is_none()) {
    const Views o = a.list("out", out, kWritten);
    a.run([&] { dim_reduce_apply(a.context(), m, g, p, d, c, o); });
    return;
  }
  const Views w = a.list("out", out, kWritten), s = a.list("saved", saved);
  const Factors rate = factors(a, "lr", lr);
  a.run([&] { dim_reduce_apply(a.context(), m, g, p, d, c, w, s, rate); });
}

py::dict build_info() {
  py::dict info;
  info["version"] = BOOST_EXT_VERSION;
  info["compiler"] = compiler();
  info["flags"] = BOOST_EXT_FLAGS;
  const cuda::Build* gpu = cuda::build();
  const ascend::Build* npu = ascend::build();
  std::vector<std::string> backends{"cpu"};
  if (gpu != nullptr) backends.emplace_back("cuda");
  if (npu != nullptr) backends.emplace_back("ascend");
  info["backends"] = backends;
  info["cuda"] = py::none();
  info["ascend"] = py::none();
  if (npu != nullptr) info["ascend"] = py::dict(py::arg("emulated") = npu->emulated);
  if (gpu != nullptr) {
    py::dict d;
    d["runtime"] = gpu->runtime;
    d["architectures"] = gpu->architectures;
    d["emulated"] = gpu->emulated;
    const std::string blas = cuda::blas_in_use();
    d["cublas"] = blas.empty() ? py::object(py::none()) : py::str(blas);
    info["cuda"] = d;
  }
  info["built_isas"] = built_isas();
  info["cpu_isas"] = cpu_features();
  info["isa"] = isa_name();
  info["threads"] = num_threads();
  return info;
}

}  // namespace

PYBIND11_MODULE(_core, m) {
  py::register_local_exception_translator([](std::exception_ptr p) {
    try {
      if (p) std::rethrow_exception(p);
    } catch (const TypeError& e) { PyErr_SetString(PyExc_TypeError, e.what()); }
  });
  m.doc() = "The native ops of boost_ext; see boost_ext.ops for their documentation.";
#define BOOST_EXT_PYTHON_OF(op, schema) define(m, schema, &op);
  BOOST_EXT_PLAIN_OPS(BOOST_EXT_PYTHON_OF)
  m.def("pca_project", &py_pca_project, py::arg("P"), py::arg("grads"), py::arg("out"), py::arg("scale") = py::none());
  m.def("pca_back_project", &py_pca_back_project, py::arg("P"), py::arg("vectors"), py::arg("out"),
        py::arg("scale") = py::none());
  m.def("adasum_dots", &py_adasum_dots, py::arg("a"), py::arg("b"), py::arg("out") = py::none());
  m.def("adasum_combine", &py_adasum_combine, py::arg("a"), py::arg("b"), py::arg("dots"), py::arg("out") = py::none());
  m.def("adasum_pair", &py_adasum_pair, py::arg("a"), py::arg("b"), py::arg("out") = py::none());
  m.def("unscale_and_check", &py_unscale_and_check, py::arg("grads"), py::arg("inv_scale"), py::arg("report"),
        py::arg("out") = py::none());
  define(m, kClipByGlobalNorm, &clip_by_global_norm);
  define(m, kGlobalNorm, &global_norm);
  m.def("centralize", &py_centralize, py::arg("grads"), py::arg("out") = py::none());
  m.def("tensor_statistics", &py_tensor_statistics, py::arg("tensors"), py::arg("scale"), py::arg("out") = py::none());
  define(m, kAccumulate, &accumulate);
  define(m, kDimReduceDirection, &dim_reduce_direction);
  m.def("dim_reduce_trial", &py_dim_reduce_trial, py::arg("weights"), py::arg("saved"), py::arg("dn"), py::arg("step"),
        py::arg("save"));
  m.def("dim_reduce_apply", &py_dim_reduce_apply, py::arg("momentum"), py::arg("grads"), py::arg("grad_proj"),
        py::arg("dn"), py::arg("out"), py::arg("gamma"), py::arg("alpha"), py::arg("rho"), py::arg("inv_scale"),
        py::arg("saved"), py::arg("lr"));
  define(m, kLossScaleUpdate, &loss_scale_update);
  define_device_array(m);
  m.def("set_stream", &set_stream, py::arg("stream"));
  define_optimizers(m);
  define_curvature(m);
  define_dropout(m);
  define_graph_ops(m);
  define_schemas(m);
  // Their Python functions are written by hand: they make results, or take what is no argument of the op. Of an op with
  // two schemas the one that takes more is described. adasum_part and group_loss_scale are no functions of Python's.
  for (const Schema* schema :
       {&kPcaProject, &kPcaBackProject, &kAdasumDots, &kAdasumCombine, &kAdasumPair, &kCentralize, &kUnscaleAndCheck,
        &kTensorStatistics, &kDimReduceTrial, &kDimReduceApplyToWeights})
    describe(*schema);
  m.def("build_info", &build_info, R"(What this build has, and what the CPU can use of it: a dict.

Examples:
    >>> import boost_ext
    >>> sorted(boost_ext.build_info())
    ['ascend', 'backends', 'built_isas', 'compiler', 'cpu_isas', 'cuda', 'flags', 'isa', 'threads', 'version'])");
  m.def("num_threads", &num_threads, R"(Threads that the ops use on a CPU, the calling one included.

Examples:
    >>> import boost_ext
    >>> boost_ext.num_threads() >= 1
    True)");
  m.def("set_num_threads", &set_num_threads, py::arg("threads"),
        R"(Let the ops use so many threads. Results have the same bits.

Args:
    threads (int): from 1 to 1024, the calling one included.

Examples:
    >>> import boost_ext
    >>> before = boost_ext.num_threads()
    >>> boost_ext.set_num_threads(1)
    >>> boost_ext.set_num_threads(before))");
  m.def("set_isa", &set_isa, py::arg("name"));
}
