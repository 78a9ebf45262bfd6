#include "doors/graph.h"

#include <cstdio>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <utility>

#include "ops/runtime.h"

namespace boost_ext {
namespace {

std::map<std::string, const GraphOp*>& known() {
  static std::map<std::string, const GraphOp*> ops;
  return ops;
}

std::mutex error_mutex;
std::string error;  // guarded by it: MindSpore calls functions from several threads

void set_dtype(View& v, const char* dtype) {
  for (DType t : kNamedDTypes) {
    v.dtype = t;
    if (std::strcmp(dtype, name(t)) == 0) return;
  }
  const bool is_float32 = std::strcmp(dtype, "float") == 0;
  v.dtype = is_float32 ? DType::f32 : DType::other;
  if (!is_float32) v.other_dtype = dtype;
}

}  // namespace

GraphOp::GraphOp(const char* name, GraphFunction function, bool writes_inputs)
    : name(name), function(function), writes_inputs(writes_inputs) {
  known().emplace(name, this);
}

bool GraphOp::operator()(const Views& arrays) const {
  Reader in(name, arrays);
  function(in);
  return in.answer();
}

int GraphOp::operator()(int count, void** data, int* ndims, std::int64_t** shapes, const char** dtypes) const noexcept {
  try {
    const int arrays = writes_inputs ? count - 1 : count;
    require(!writes_inputs || (count >= 1 && std::strcmp(dtypes[arrays], "bool") == 0), name,
            ": must have one output, a bool");
    Views views(static_cast<std::size_t>(arrays));
    for (int i = 0; i < arrays; ++i) {
      View& v = views[static_cast<std::size_t>(i)];
      v.data = data[i];
      v.set_shape(ndims[i], [&](int d) { return shapes[i][d]; });
      set_dtype(v, dtypes[i]);
    }
    if (writes_inputs) *static_cast<bool*>(data[arrays]) = true;  // also where the op refuses
    const bool answer = (*this)(views);
    if (writes_inputs) *static_cast<bool*>(data[arrays]) = answer;
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "boost_ext: %s\n", e.what());
    const std::lock_guard<std::mutex> lock(error_mutex);
    error = e.what();
    return 1;
  }
}

const GraphOp& find_graph_op(const std::string& name) {
  const auto found = known().find(name);
  require(found != known().end(), "call: name must be that of a graph function, got ", name);
  return *found->second;
}

std::string take_graph_error() {
  const std::lock_guard<std::mutex> lock(error_mutex);
  return std::exchange(error, std::string());
}

}  // namespace boost_ext
