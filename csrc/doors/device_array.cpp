#include "doors/device_array.h"

#include <pybind11/stl.h>

#include <optional>

#include "doors/cuda_arrays.h"
#include "doors/dlpack.h"

namespace py = pybind11;

namespace boost_ext {
namespace {

std::int64_t product(const std::vector<std::int64_t>& shape) {
  std::int64_t size = 1;
  for (std::int64_t extent : shape) size *= extent;
  return size;
}

const char* type_string(DType t) {
  return t == DType::f64 ? "<f8" : t == DType::f32 ? "<f4" : t == DType::f16 ? "<f2" : t == DType::i32 ? "<i4" : "<V2";
}

py::dtype bfloat16() {
  try {
    return py::dtype::from_args(py::module_::import("ml_dtypes").attr("bfloat16"));
  } catch (py::error_already_set& e) {
    if (!e.matches(PyExc_ImportError)) throw;
    throw TypeError("DeviceArray: NumPy has bfloat16 from ml_dtypes, which is not installed; DLPack needs it not");
  }
}

// A DLPack tensor that keeps the memory alive: the legacy form and that of version 1 differ in where the flags are.
template <class Managed> struct Exported {
  Managed managed{};
  std::shared_ptr<DeviceArray::Memory> memory;
  std::vector<std::int64_t> shape;
  std::optional<void*> reader;  // the stream that it was made ready for

  // The memory goes back in the order of its own stream, so that has to wait for those who read it.
  ~Exported() {
    if (!reader || *reader == memory->context.stream) return;
    Context reading = memory->context;
    reading.stream = *reader;
    cuda::try_order_after(memory->context.stream, reading);
  }
};

template <class Managed>
py::capsule capsule(const char* name, std::shared_ptr<DeviceArray::Memory> memory, DType dtype,
                    const std::vector<std::int64_t>& shape, std::optional<void*> reader) {
  auto* exported = new Exported<Managed>{{}, std::move(memory), shape, reader};
  dlpack::Tensor& t = exported->managed.tensor;
  t.data = exported->memory->data;
  t.device = {dlpack::kCuda, exported->memory->context.device_id};
  t.ndim = static_cast<std::int32_t>(shape.size());
  t.shape = exported->shape.data();
  t.dtype = {dtype == DType::i32    ? std::uint8_t{dlpack::kInt}
             : dtype == DType::bf16 ? std::uint8_t{dlpack::kBfloat}
                                    : std::uint8_t{dlpack::kFloat},
             static_cast<std::uint8_t>(8 * item_size(dtype)), 1};
  exported->managed.context = exported;
  exported->managed.deleter = [](Managed* managed) { delete static_cast<Exported<Managed>*>(managed->context); };
  if constexpr (std::is_same_v<Managed, dlpack::ManagedVersioned>) exported->managed.version = {1, 0};
  PyObject* object = PyCapsule_New(&exported->managed, name, [](PyObject* self) {
    // A consumer renames the capsule, and deletes then.
    const char* own = PyCapsule_GetName(self);
    if (own == nullptr || std::string(own).rfind("used", 0) == 0) return;
    auto* managed = static_cast<Managed*>(PyCapsule_GetPointer(self, own));
    managed->deleter(managed);
  });
  if (object == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::capsule>(object);
}

std::pair<std::int64_t, std::int64_t> pair(const char* arg, const py::object& value) {
  try {
    return value.cast<std::pair<std::int64_t, std::int64_t>>();
  } catch (const py::cast_error&) {
    throw TypeError(text("DeviceArray: ", arg, " must be two integers, got ", py::repr(value).cast<std::string>()));
  }
}

}  // namespace

DeviceArray::DeviceArray(const char* op, const Context& context, DType dtype, std::vector<std::int64_t> shape)
    : dtype_(dtype), shape_(std::move(shape)) {
  require(!cuda::is_capturing(context), op,
          ": out must be given while a CUDA graph is captured, since the graph would own new memory, got none");
  memory_ = std::make_shared<Memory>(context, product(shape_) * item_size(dtype));
}

View DeviceArray::view() const {
  View v;
  v.data = memory_->data;
  v.dtype = dtype_;
  v.device = Device::cuda;
  v.device_id = memory_->context.device_id;
  v.set_shape(static_cast<int>(shape_.size()), [this](int d) { return shape_[static_cast<std::size_t>(d)]; });
  return v;
}

py::array DeviceArray::numpy() const {
  py::array host(dtype_ == DType::bf16 ? bfloat16() : py::dtype(type_string(dtype_)), shape_);
  void* to = host.mutable_data();
  const std::int64_t bytes = product(shape_) * item_size(dtype_);
  py::gil_scoped_release release;
  cuda::download(memory_->context, to, memory_->data, bytes);
  return host;
}

py::dict DeviceArray::cuda_array_interface() const {
  py::dict d;
  d["shape"] = py::tuple(py::cast(shape_));
  d["typestr"] = type_string(dtype_);
  d["data"] = py::make_tuple(reinterpret_cast<std::uintptr_t>(memory_->data), false);
  d["strides"] = py::none();
  d["version"] = 3;
  d["stream"] = number_of_stream(memory_->context.stream);
  return d;
}

py::capsule DeviceArray::dlpack(const py::object& stream, const py::object& max_version) const {
  if (!stream.is_none() && !PyLong_Check(stream.ptr())) {
    throw TypeError(text("DeviceArray: stream must be an integer or None, got ", Py_TYPE(stream.ptr())->tp_name));
  }
  const std::int64_t number = stream.is_none() ? 1 : PyLong_AsLongLong(stream.ptr());
  if (PyErr_Occurred() != nullptr) throw py::error_already_set();
  require(number >= -1, "DeviceArray: stream must be a CUDA stream, or -1, got ", number);
  std::optional<void*> reader;
  if (number != -1) {
    reader = stream_numbered(static_cast<std::uintptr_t>(number));
    if (*reader != memory_->context.stream) cuda::order_after(*reader, memory_->context);
  }
  const bool versioned = !max_version.is_none() && pair("max_version", max_version).first >= 1;
  return versioned ? capsule<dlpack::ManagedVersioned>("dltensor_versioned", memory_, dtype_, shape_, reader)
                   : capsule<dlpack::Managed>("dltensor", memory_, dtype_, shape_, reader);
}

void define_device_array(py::module_& m) {
  const auto number = [](const DeviceArray& self) {
    require(product(self.shape()) == 1, "DeviceArray: only an array of one element is a number, got ",
            product(self.shape()), " elements");
    return self.numpy().attr("item")();
  };
  py::class_<DeviceArray>(m, "DeviceArray", "An array on a CUDA device; reading its value waits for its stream.")
      .def_property_readonly("shape", [](const DeviceArray& self) { return py::tuple(py::cast(self.shape())); })
      .def_property_readonly("dtype", [](const DeviceArray& self) { return std::string(name(self.dtype())); })
      .def_property_readonly("__cuda_array_interface__", &DeviceArray::cuda_array_interface)
      .def("__dlpack_device__",
           [](const DeviceArray& self) { return py::make_tuple(int{dlpack::kCuda}, self.context().device_id); })
      .def(
          "__dlpack__",
          [](const DeviceArray& self, const py::object& stream, const py::object& max_version, const py::object& where,
             const py::object& copy) {
            const std::pair<std::int64_t, std::int64_t> here{dlpack::kCuda, self.context().device_id};
            if (!where.is_none() && pair("dl_device", where) != here) {
              throw py::buffer_error("DeviceArray: dl_device must be where the array is, got another device");
            }
            if (!copy.is_none() && py::bool_(copy)) {
              throw py::buffer_error("DeviceArray: copy must be False or None, got True");
            }
            return self.dlpack(stream, max_version);
          },
          py::kw_only(), py::arg("stream") = py::none(), py::arg("max_version") = py::none(),
          py::arg("dl_device") = py::none(), py::arg("copy") = py::none())
      .def("numpy", &DeviceArray::numpy)
      .def("__array__",
           [](const DeviceArray&, const py::args&, const py::kwargs&) -> py::array {
             throw TypeError("DeviceArray: numpy() brings it to the host, and waits for its stream; nothing else does");
           })
      .def("item", number)
      .def("__bool__", [number](const DeviceArray& self) { return static_cast<bool>(py::bool_(number(self))); })
      .def("__float__", [number](const DeviceArray& self) { return number(self).template cast<double>(); })
      .def("__repr__", [](const DeviceArray& self) {
        return text("DeviceArray(", name(self.dtype()), ", ", py::repr(py::tuple(py::cast(self.shape()))),
                    ", CUDA device ", self.context().device_id, ")");
      });
}

}  // namespace boost_ext
