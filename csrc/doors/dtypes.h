// The dtype of a view, as NumPy, MindSpore and DLPack call it, and what else no door lets in.
#pragma once

#include <pybind11/numpy.h>

#include <string>

#include "doors/dlpack.h"
#include "ops/tensor.h"

namespace boost_ext {

// A dtype that no op takes: the op that gets it says what it wanted.
void set_other(View& v, const std::string& label);

void set_dtype(View& v, const char* op, const Name& arg, const pybind11::array& array);
void set_dtype(View& v, pybind11::object mindspore_dtype);
void set_dtype(View& v, dlpack::DataType got);

}  // namespace boost_ext
