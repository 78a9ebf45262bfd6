// The Python door: a line an op. It converts arguments, releases the GIL and calls; the checks are the ops'.
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
#include "ops/covariance.h"
#include "ops/damped_inverse.h"
#include "ops/dropout.h"
#include "ops/global_norm.h"
#include "ops/lars.h"
#include "ops/pca_back_project.h"
#include "ops/precondition.h"
#include "ops/runtime.h"

namespace py = pybind11;
using namespace boost_ext;

namespace {

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
  using Numbers = std::vector<std::int64_t>;
  define(m, kAccumulate, &accumulate);
  define(m, kAdasumCombine, &adasum_combine);
  define(m, kAdasumDots, &adasum_dots);
  define(m, kAdasumPair, &adasum_pair);
  define(m, kCentralize, &centralize);
  define(m, kCentralizeInPlace, &centralize_in_place);
  define<const View&, const Numbers&, double, const View&>(m, kCovariance, &covariance);
  define(m, kDampedInverse, &damped_inverse);
  define(m, kDimReduceApplyToWeights, &dim_reduce_apply);
  define(m, kDropout, &dropout);
  define(m, kGlobalNorm, &global_norm);
  define(m, kLars, &lars);
  define(m, kPcaBackProject, &pca_back_project);
  define(m, kPrecondition, &precondition);
  define_device_array(m);
  m.def("set_stream", &set_stream, py::arg("stream"));
  define_optimizers(m);
  define_graph_ops(m);
  define_schemas(m);
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
  m.def("float32_matmul_precision", &float32_matmul_precision, R"(What set_float32_matmul_precision() was given last.

Examples:
    >>> import boost_ext
    >>> boost_ext.float32_matmul_precision()
    'highest')");
  m.def(
      "set_float32_matmul_precision", &set_float32_matmul_precision, py::arg("precision"),
      R"(How precisely compiled steps, Muon and GaLore multiply float32 matrices on a CPU. Call it before the first step.

Args:
    precision (str): ``"highest"``, the default, or ``"medium"``. With ``"medium"`` factors are rounded to bfloat16, and
        products are added in float32: those of more than 32 rows of nn.Dense and ops.matmul, the convolutions of many
        channels, the gradients of both, the iteration of Muon and ops.orthogonalize, and the two products of GaLore's
        step. 3 x 3 convolutions of stride 1 round factors once they are transformed (Winograd). It needs a CPU with AVX512-BF16 (AMD from Zen 4, Intel from
        Cooper Lake on); on others nothing changes. Sums may have other bits on another kind of CPU. Weights,
        activations, gradients and state stay float32.

Raises:
    ValueError: if precision is neither.

Examples:
    >>> import boost_ext
    >>> boost_ext.set_float32_matmul_precision("medium")
    >>> boost_ext.set_float32_matmul_precision("highest"))");
  m.def("has_narrow_products", &has_narrow_products);
  m.def("set_isa", &set_isa, py::arg("name"));
}
