// What the ops take, as Python sees it: for the tests, the documentation and whoever wants to know.
#include "doors/python.h"
#include "ops/accumulate.h"
#include "ops/adasum.h"
#include "ops/bfgs_update.h"
#include "ops/centralize.h"
#include "ops/clip_by_global_norm.h"
#include "ops/damped_inverse.h"
#include "ops/dim_reduce.h"
#include "ops/dropout.h"
#include "ops/global_norm.h"
#include "ops/loss_scale_update.h"
#include "ops/pca_back_project.h"
#include "ops/pca_project.h"
#include "ops/precondition.h"
#include "ops/unscale_and_check.h"

namespace py = pybind11;

namespace boost_ext {
namespace {

constexpr const Schema* kSchemas[] = {
    &kAccumulate,       &kAdasumCombine,   &kAdasumDots,     &kAdasumPair,         &kBfgsUpdate,     &kCentralize,
    &kClipByGlobalNorm, &kDampedInverse,   &kDimReduceApply, &kDimReduceDirection, &kDimReduceTrial, &kDropout,
    &kGlobalNorm,       &kLossScaleUpdate, &kPcaBackProject, &kPcaProject,         &kPrecondition,   &kUnscaleAndCheck};

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::array:
      return "array";
    case Kind::arrays:
      return "arrays";
    case Kind::lists:
      return "lists";
    case Kind::answer:
      return "answer";
    case Kind::number:
      return "number";
    case Kind::real:
      return "real";
    case Kind::reals:
      return "reals";
    case Kind::integer:
      return "integer";
    case Kind::flag:
      break;
  }
  return "flag";
}

py::dict schema_of(const Arg& arg) {
  py::list dtypes;
  for (DType t : {DType::f32, DType::f16, DType::bf16, DType::f64, DType::i32, DType::b8, DType::u8, DType::i8}) {
    if ((arg.dtypes & only(t)) != 0) dtypes.append(name(t));
  }
  const auto text_or_none = [](const char* text) { return text != nullptr ? py::object(py::str(text)) : py::none(); };
  using namespace pybind11::literals;
  return py::dict("name"_a = arg.name, "kind"_a = name_of(arg.kind), "dtypes"_a = dtypes,
                  "like"_a = text_or_none(arg.like_name), "dtypes_of"_a = text_or_none(arg.dtype_name),
                  "written"_a = arg.is_written, "any_order"_a = arg.takes_any_order, "twin"_a = arg.is_twin,
                  "repeatable"_a = arg.may_repeat, "optional"_a = arg.is_optional);
}

py::dict schemas() {
  py::dict all;
  for (const Schema* schema : kSchemas) {
    py::list args;
    for (std::size_t i = 0; i < schema->count; ++i) args.append(schema_of(schema->args[i]));
    all[schema->op] = args;
  }
  return all;
}

}  // namespace

void define_schemas(py::module_& m) { m.def("schemas", &schemas); }

}  // namespace boost_ext
