// The functions that MindSpore calls: its graphs by ops.Custom (func_type "aot"), PYNATIVE_MODE by name and pointer.
// Both give the same arrays in the same order.
#pragma once

#include <string>

#include "doors/reader.h"

namespace boost_ext {

using GraphFunction = void (*)(Reader&);

struct GraphOp {
  const char* name;
  GraphFunction function;
  // False: MindSpore allocates what it returns, and the function gets that at the end of the list.
  bool writes_inputs;

  GraphOp(const char* name, GraphFunction function, bool writes_inputs);  // from now on found by its name
  bool operator()(const Views& arrays) const;                             // what it answers
  // As ops.Custom calls it. It shows its users only the number that is returned, so the message goes to stderr first,
  // and is kept for take_graph_error().
  int operator()(int count, void** data, int* ndims, std::int64_t** shapes, const char** dtypes) const noexcept;
};

const GraphOp& find_graph_op(const std::string& name);  // std::invalid_argument if there is none
std::string take_graph_error();                         // of the last function that failed since; empty if none did

}  // namespace boost_ext

#define BOOST_EXT_DEFINE_GRAPH_OP(name, writes_inputs)                                                \
  static void graph_##name(::boost_ext::Reader&);                                                     \
  static const ::boost_ext::GraphOp op_##name(#name, &graph_##name, writes_inputs);                   \
  extern "C" __attribute__((visibility("default"))) int boost_ext_##name(                             \
      int count, void** data, int* ndims, std::int64_t** shapes, const char** dtypes, void*, void*) { \
    return op_##name(count, data, ndims, shapes, dtypes);                                             \
  }                                                                                                   \
  static void graph_##name(::boost_ext::Reader& in)
// An op that writes inputs; its one output is the bool that it answers.
#define BOOST_EXT_GRAPH_OP(name) BOOST_EXT_DEFINE_GRAPH_OP(name, true)
// A pure function into outputs that MindSpore allocates.
#define BOOST_EXT_GRAPH_FUNCTION(name) BOOST_EXT_DEFINE_GRAPH_OP(name, false)
