// What DLPack says of an array.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <string>

#include "doors/dlpack.h"
#include "ops/tensor.h"

namespace boost_ext {

struct GiveBack {
  void operator()(dlpack::ManagedVersioned* managed) const {
    if (managed->deleter != nullptr) managed->deleter(managed);
  }
};
using LentTensor = std::unique_ptr<dlpack::ManagedVersioned, GiveBack>;

std::string first_line(const pybind11::error_already_set& e);

bool is_cuda(const dlpack::Device& device);

// Dtype, shape and data of `t`, which lies where ops can reach it.
void set_tensor(View& v, const char* op, const Name& arg, const dlpack::Tensor& t);
void set_tensor(View& v, const char* op, const Name& arg, const dlpack::ManagedVersioned& managed);

// Refuses what is neither on a CPU nor on a CUDA device.
void require_reachable(const char* op, const Name& arg, const dlpack::Device& device);

// The functions by which a type hands out its arrays without a call of Python, nullptr where it has none that we know.
const dlpack::Exchange* exchange_of(pybind11::handle type);
LentTensor tensor_of(const char* op, const Name& arg, pybind11::handle object, const dlpack::Exchange& exchange);
// The same without memory of its own, for a type that has it and no arrays that are read-only.
dlpack::Tensor borrowed_tensor_of(const char* op, const Name& arg, pybind11::handle object,
                                  const dlpack::Exchange& exchange);
// The memory that the framework of such a type makes for others; nullptr if it makes none.
const Allocator* allocator_of(const dlpack::Exchange& exchange);
void* work_stream(const char* op, const Name& arg, const dlpack::Exchange& exchange, const dlpack::Device& device);

}  // namespace boost_ext
