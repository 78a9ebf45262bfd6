#include "doors/cuda_arrays.h"

#include <pybind11/stl.h>

#include <cstring>
#include <optional>
#include <string>

#include "doors/dtypes.h"
#include "doors/layout.h"
#include "ops/device.h"

namespace py = pybind11;

namespace boost_ext {
namespace {

thread_local std::optional<std::uintptr_t> stream_of_thread;

DType dtype_of(const std::string& typestr) {
  struct Known {
    const char* code;
    DType dtype;
  };
  for (const Known& k :
       {Known{"f4", DType::f32}, Known{"f2", DType::f16}, Known{"f8", DType::f64}, Known{"i4", DType::i32},
        Known{"b1", DType::b8}, Known{"u1", DType::u8}, Known{"i1", DType::i8}, Known{"i2", DType::i16}}) {
    if (typestr.size() == 3 && typestr.compare(1, 2, k.code) == 0) return k.dtype;
  }
  return DType::other;
}

}  // namespace

bool is_from(py::handle type, const char* package) {
  const std::size_t n = std::strlen(package);
  for (py::handle base : type.attr("__mro__")) {
    const auto module = py::str(base.attr("__module__")).cast<std::string>();
    if (module.compare(0, n, package) == 0 && (module.size() == n || module[n] == '.')) return true;
  }
  return false;
}

std::optional<void*> chosen_stream() {
  if (!stream_of_thread) return std::nullopt;
  return stream_numbered(*stream_of_thread);
}

CudaArray from_cuda_array_interface(const char* op, const Name& arg, py::handle object) {
  CudaArray result;
  View& v = result.view;
  v.device = Device::cuda;
  const auto refuse = [&](const std::string& what) {
    throw TypeError(text(op, ": ", arg, " must have a valid __cuda_array_interface__, got ", what));
  };
  const py::object got = object.attr("__cuda_array_interface__");
  if (!py::isinstance<py::dict>(got)) refuse("something else than a dict");
  const py::dict interface = got;
  for (const char* key : {"shape", "typestr", "data", "version"}) {
    if (!interface.contains(key)) refuse(text("none without ", key));
  }
  const auto integers = [&](const char* key) {
    const py::object value = interface[key];
    if (!py::isinstance<py::tuple>(value)) refuse(text("a ", key, " that is no tuple"));
    try {
      return value.cast<std::vector<std::int64_t>>();
    } catch (const py::cast_error&) { refuse(text("a ", key, " of other things than integers")); }
    return std::vector<std::int64_t>();
  };
  const py::object mask = interface.contains("mask") ? py::object(interface["mask"]) : py::none();
  require(mask.is_none(), op, ": ", arg, " must have no mask, got one");
  if (!py::isinstance<py::str>(interface["typestr"])) refuse("a typestr that is no string");
  const auto typestr = interface["typestr"].cast<std::string>();
  require(typestr.empty() || typestr[0] != '>', op, ": ", arg, " must be in native byte order, got ", typestr);
  v.dtype = dtype_of(typestr);
  if (v.dtype == DType::other) set_other(v, typestr);
  std::pair<std::uintptr_t, bool> data;
  try {
    data = interface["data"].cast<std::pair<std::uintptr_t, bool>>();
  } catch (const py::cast_error&) { refuse("data that are no address and a bool"); }
  v.data = reinterpret_cast<void*>(data.first);
  v.writable = !data.second;
  result.shape = integers("shape");
  const std::vector<std::int64_t>& shape = result.shape;
  std::vector<std::int64_t> strides;
  if (interface.contains("strides") && !interface["strides"].is_none()) {
    strides = integers("strides");
    if (strides.size() != shape.size()) refuse("strides of another length than its shape");
  }
  const bool follows = strides.empty() || v.dtype == DType::other;  // the op refuses the latter
  set_layout(v, op, arg, static_cast<std::int64_t>(shape.size()), shape.data(), follows ? nullptr : strides.data(),
             item_size(v.dtype));
  if (v.dtype != DType::other) {
    require_aligned(op, arg, data.first % static_cast<std::uintptr_t>(item_size(v.dtype)) == 0);
  }
  if (interface.contains("stream") && !interface["stream"].is_none()) {
    try {
      result.stream = stream_numbered(interface["stream"].cast<std::uintptr_t>());
    } catch (const py::cast_error&) { refuse("a stream that is no integer"); }
    result.names_stream = true;
  }
  if (v.size > 0 && v.data != nullptr) v.device_id = cuda::device_of(v.data);
  return result;
}

void* current_stream(py::handle object, int device_id) {
  if (const std::optional<void*> stream = chosen_stream()) return *stream;
  const py::handle type = py::type::handle_of(object);
  if (is_from(type, "torch")) {
    const py::object stream = py::module_::import("torch").attr("cuda").attr("current_stream")(device_id);
    return reinterpret_cast<void*>(stream.attr("cuda_stream").cast<std::uintptr_t>());
  }
  if (is_from(type, "cupy")) {
    const py::object stream = py::module_::import("cupy").attr("cuda").attr("get_current_stream")(device_id);
    return reinterpret_cast<void*>(stream.attr("ptr").cast<std::uintptr_t>());
  }
  if (py::hasattr(object, "__cuda_array_interface__")) {
    const py::object interface = object.attr("__cuda_array_interface__");
    if (py::isinstance<py::dict>(interface) && py::dict(interface).contains("stream")) {
      const py::object stream = interface["stream"];
      if (!stream.is_none()) return stream_numbered(stream.cast<std::uintptr_t>());
    }
  }
  return nullptr;
}

py::object set_stream(const py::object& stream) {
  const py::object before = stream_of_thread ? py::object(py::int_(*stream_of_thread)) : py::object(py::none());
  if (stream.is_none()) {
    stream_of_thread.reset();
    return before;
  }
  if (!PyLong_Check(stream.ptr())) {
    throw TypeError(text("cuda.stream: pointer must be an integer, got ", Py_TYPE(stream.ptr())->tp_name));
  }
  const std::size_t number = PyLong_AsSize_t(stream.ptr());
  if (PyErr_Occurred() != nullptr) throw py::error_already_set();
  stream_of_thread = number;
  return before;
}

std::int64_t number_of_stream(const void* stream) {
  return stream == nullptr ? 1 : static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(stream));
}

void* stream_numbered(std::uintptr_t number) {
  return number == 1 ? nullptr
                     : reinterpret_cast<void*>(number);  // 1 is the legacy default stream; 2, per thread, is 2
}

}  // namespace boost_ext
