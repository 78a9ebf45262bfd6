#pragma once

#include <pybind11/pybind11.h>

namespace boost_ext {

void define_adafactor_step(pybind11::module_& m);

}  // namespace boost_ext
