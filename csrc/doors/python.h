// What the parts of the Python door share: python.cpp begins the module, the others add their functions to it.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "doors/arrays.h"

namespace boost_ext {

using Object = pybind11::object;

void define_graph_ops(pybind11::module_& m);
void define_optimizers(pybind11::module_& m);
void define_schemas(pybind11::module_& m);

}  // namespace boost_ext
