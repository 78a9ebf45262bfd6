// The Python door of the curvature ops.
#include "doors/from_schema.h"
#include "doors/python.h"
#include "ops/covariance.h"
#include "ops/damped_inverse.h"
#include "ops/precondition.h"

namespace py = pybind11;

namespace boost_ext {

void define_curvature(py::module_& m) {
  using Numbers = std::vector<std::int64_t>;
  define<const View&, const Numbers&, double, const View&>(m, kCovariance, &covariance);
  define(m, kDampedInverse, &damped_inverse);
  define(m, kPrecondition, &precondition);
}

}  // namespace boost_ext
