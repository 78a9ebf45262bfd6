// Defines the functions of "ops/adasum_part.h" in the Python module.
#pragma once

#include <pybind11/pybind11.h>

namespace boost_ext {

void define_adasum_part(pybind11::module_& m);

}  // namespace boost_ext
