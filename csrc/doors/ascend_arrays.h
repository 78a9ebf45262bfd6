// MindSpore's tensors on Ascend devices: on which one, and on which stream MindSpore works.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

namespace boost_ext {

// Of a tensor's `device`, as in "Ascend:0".
int ascend_device_id(const std::string& device);

// Whether the MindSpore that the tensor's class is from has no other device: it would say so of each tensor. Asked once
// a call: `device` of each would cost a fifth of the call.
bool all_on_cpu(pybind11::handle tensor);

// The current stream of the MindSpore that the tensor's class is from.
void* current_ascend_stream(const char* op, pybind11::handle tensor);

}  // namespace boost_ext
