// The part of the Python door that is about curvature.
#pragma once

#include <pybind11/pybind11.h>

namespace boost_ext {

void define_curvature(pybind11::module_& m);

}  // namespace boost_ext
