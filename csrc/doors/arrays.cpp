#include "doors/arrays.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "doors/dlpack.h"

namespace py = pybind11;

namespace boost_ext {
namespace {

enum class Kind { numpy, mindspore, dlpack, cuda, unknown };

Kind classify(py::handle type, py::handle object) {
  if (py::isinstance<py::array>(object)) return Kind::numpy;
  for (py::handle base : type.attr("__mro__")) {
    const auto module = py::str(base.attr("__module__")).cast<std::string>();
    if (module.rfind("mindspore", 0) == 0 && py::hasattr(type, "data_ptr")) return Kind::mindspore;
  }
  // Of the type, not of the object: a class is no array, though it has its instances' methods.
  if (py::hasattr(type, "__dlpack__") && py::hasattr(type, "__dlpack_device__")) return Kind::dlpack;
  if (py::hasattr(type, "__cuda_array_interface__")) return Kind::cuda;
  return Kind::unknown;
}

// Asked once a type; types are few and are kept alive so that their address stays theirs.
Kind kind_of(py::handle object) {
  static auto* known = new std::vector<std::pair<PyTypeObject*, Kind>>();
  PyTypeObject* type = Py_TYPE(object.ptr());
  for (const auto& [t, kind] : *known) {
    if (t == type) return kind;
  }
  const Kind kind = classify(reinterpret_cast<PyObject*>(type), object);
  if (kind != Kind::unknown && kind != Kind::cuda && known->size() < 64) {
    Py_INCREF(type);
    known->emplace_back(type, kind);
  }
  return kind;
}

// A dtype that no op takes: the op that gets it says what it wanted. The names live as long as the process; they are
// few.
void set_other(View& v, const std::string& label) {
  static auto* const names = new std::set<std::string>();
  v.dtype = DType::other;
  v.other_dtype = names->insert(label).first->c_str();
}

void set_dtype(View& v, const char* op, const Name& arg, const py::array& array) {
  const py::dtype dtype = array.dtype();
  require(dtype.byteorder() != '>', op, ": ", arg, " must be in native byte order, got ",
          py::str(dtype.attr("str")).cast<std::string>());
  static const std::pair<int, DType> numbers[] = {{11, DType::f32}, {12, DType::f64}, {23, DType::f16},
                                                  {5, DType::i32},  {0, DType::b8},   {2, DType::u8}};
  for (const auto& [number, t] : numbers) {
    if (dtype.num() == number) {
      v.dtype = t;
      return;
    }
  }
  const auto label = py::str(dtype.attr("name")).cast<std::string>();
  if (label == "bfloat16" && dtype.itemsize() == 2) {  // ml_dtypes, or MindSpore's own
    v.dtype = DType::bf16;
  } else {
    set_other(v, label);
  }
}

void set_dtype(View& v, py::object mindspore_dtype) {
  static auto* known = new std::vector<std::pair<py::object, DType>>();  // MindSpore's dtypes are singletons
  for (const auto& [object, t] : *known) {
    if (object.ptr() == mindspore_dtype.ptr()) {
      v.dtype = t;
      return;
    }
  }
  const auto label = py::str(mindspore_dtype).cast<std::string>();
  static const std::pair<const char*, DType> names[] = {
      {"Float32", DType::f32}, {"Float16", DType::f16}, {"BFloat16", DType::bf16}, {"Float64", DType::f64},
      {"Int32", DType::i32},   {"Bool", DType::b8},     {"UInt8", DType::u8}};
  for (const auto& [n, t] : names) {
    if (label == n) {
      known->emplace_back(std::move(mindspore_dtype), t);
      v.dtype = t;
      return;
    }
  }
  set_other(v, label);
}

void set_dtype(View& v, dlpack::DataType got) {
  struct Known {
    std::uint8_t code, bits;
    DType t;
  };
  for (const Known& k :
       {Known{dlpack::kFloat, 32, DType::f32}, Known{dlpack::kFloat, 16, DType::f16},
        Known{dlpack::kFloat, 64, DType::f64}, Known{dlpack::kBfloat, 16, DType::bf16},
        Known{dlpack::kInt, 32, DType::i32}, Known{dlpack::kBool, 8, DType::b8}, Known{dlpack::kUInt, 8, DType::u8}}) {
    if (got.lanes == 1 && got.code == k.code && got.bits == k.bits) {
      v.dtype = k.t;
      return;
    }
  }
  const char* kind = got.code == dlpack::kInt       ? "int"
                     : got.code == dlpack::kUInt    ? "uint"
                     : got.code == dlpack::kFloat   ? "float"
                     : got.code == dlpack::kComplex ? "complex"
                                                    : "DLPack type";
  set_other(v, text(kind, int{got.bits}));
}

bool contiguous(const dlpack::Tensor& t) {
  if (t.strides == nullptr) return true;
  std::int64_t expected = 1;
  for (std::int32_t i = t.ndim - 1; i >= 0; --i) {
    if (t.shape[i] != 1 && t.strides[i] != expected) return false;
    expected *= t.shape[i];
  }
  return true;
}

void require_contiguous(const char* op, const Name& arg, bool ok) {
  require(ok, op, ": ", arg, " must be C-contiguous, got a strided array");
}

void require_aligned(const char* op, const Name& arg, bool ok) {
  require(ok, op, ": ", arg, " must be aligned to its element size, got an unaligned array");
}

}  // namespace

View Arrays::from_numpy(const Name& arg, py::array array) {
  View v;
  set_dtype(v, op_, arg, array);
  require_contiguous(op_, arg, (array.flags() & py::array::c_style) != 0);
  require_aligned(op_, arg, (array.flags() & py::detail::npy_api::NPY_ARRAY_ALIGNED_) != 0);
  v.data = const_cast<void*>(array.data());
  v.set_shape(static_cast<int>(array.ndim()), [&](int d) { return array.shape(d); });
  v.writable = array.writeable();
  return v;
}

View Arrays::from_mindspore(const Name& arg, py::handle object) {
  static const auto& names = *new std::vector<py::str>{py::str("dtype"), py::str("shape"), py::str("is_contiguous"),
                                                       py::str("data_ptr"), py::str("device")};
  const auto get = [&](std::size_t i) {
    PyObject* value = PyObject_GetAttr(object.ptr(), names[i].ptr());
    if (value == nullptr) throw py::error_already_set();
    return py::reinterpret_steal<py::object>(value);
  };
  const auto call = [&](std::size_t i) {
    PyObject* value = PyObject_CallMethodNoArgs(object.ptr(), names[i].ptr());
    if (value == nullptr) throw py::error_already_set();
    return py::reinterpret_steal<py::object>(value);
  };
  View v;
  set_dtype(v, get(0));
  const auto shape = py::reinterpret_borrow<py::tuple>(get(1));
  v.set_shape(static_cast<int>(shape.size()),
              [&](int d) { return shape[static_cast<std::size_t>(d)].cast<std::int64_t>(); });
  if (v.size > 0) require_contiguous(op_, arg, call(2).ptr() == Py_True);
  if (!on_device_known_) {
    if (!py::cast<std::string>(get(4)).compare(0, 6, "Ascend")) mindspore_device_ = Device::ascend;
    on_device_known_ = true;
  }
  v.device = mindspore_device_;
  // Last: this waits for the asynchronous queue, and the pointer is good until the next op is launched.
  v.data = reinterpret_cast<void*>(call(3).cast<std::uintptr_t>());
  return v;
}

View Arrays::from_dlpack(const Name& arg, py::handle object) {
  View v;
  std::pair<std::int64_t, std::int64_t> where;
  try {
    where = object.attr("__dlpack_device__")().cast<std::pair<std::int64_t, std::int64_t>>();
  } catch (const py::cast_error&) {
    throw TypeError(text(op_, ": ", arg, " must return two integers from __dlpack_device__, got something else"));
  }
  if (where.first == dlpack::kCuda || where.first == dlpack::kCudaManaged) {
    v.device = Device::cuda;  // for the op to dispatch; the data are not touched here
    v.size = 0;
    return v;
  }
  require(where.first == dlpack::kCpu || where.first == dlpack::kCudaHost, op_, ": ", arg,
          " must live on a CPU or CUDA device, got DLPack device type ", where.first);
  py::object capsule;
  try {
    try {
      capsule = object.attr("__dlpack__")(py::arg("max_version") = py::make_tuple(1, 0));
    } catch (py::error_already_set& e) {
      if (!e.matches(PyExc_TypeError)) throw;  // a producer from before DLPack 1.0 knows no max_version
      capsule = object.attr("__dlpack__")();
    }
  } catch (py::error_already_set& e) {
    throw std::invalid_argument(text(op_, ": ", arg, " cannot be read through DLPack: ", e.what()));
  }
  const dlpack::Tensor* t = nullptr;
  if (PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned") != 0) {
    auto* managed = static_cast<dlpack::ManagedVersioned*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor_versioned"));
    require(managed->version.major == 1, op_, ": ", arg, " must be DLPack version 1, got version ",
            managed->version.major);
    v.writable = (managed->flags & dlpack::kReadOnly) == 0;
    t = &managed->tensor;
  } else if (PyCapsule_IsValid(capsule.ptr(), "dltensor") != 0) {
    t = &static_cast<dlpack::Managed*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"))->tensor;
  }
  require(t != nullptr, op_, ": ", arg, " must return a DLPack capsule from __dlpack__, got something else");
  alive_.push_back(std::move(capsule));
  set_dtype(v, t->dtype);
  v.set_shape(t->ndim, [t](int d) { return t->shape[d]; });
  if (v.size > 0) require_contiguous(op_, arg, contiguous(*t));
  v.data = static_cast<char*>(t->data) + t->byte_offset;
  require_aligned(op_, arg,
                  v.dtype == DType::other || reinterpret_cast<std::uintptr_t>(v.data) % item_size(v.dtype) == 0);
  return v;
}

View Arrays::view(const Name& arg, py::handle object) {
  alive_.push_back(py::reinterpret_borrow<py::object>(object));  // a list may lose its items during the call
  const View v = convert(arg, object);
  // A MindSpore tensor that only has an initializer yet, for one.
  require(v.size == 0 || v.data != nullptr || v.device != Device::cpu, op_, ": ", arg,
          " must have its memory allocated, got an array without (a lazily initialised tensor needs init_data())");
  return v;
}

View Arrays::convert(const Name& arg, py::handle object) {
  switch (kind_of(object)) {
    case Kind::numpy:
      return from_numpy(arg, py::reinterpret_borrow<py::array>(object));
    case Kind::mindspore:
      return from_mindspore(arg, object);
    case Kind::dlpack:
      return from_dlpack(arg, object);
    case Kind::cuda: {
      View v;
      v.device = Device::cuda;
      return v;
    }
    case Kind::unknown:
      break;
  }
  throw TypeError(
      text(op_, ": ", arg, " must be an array (NumPy, MindSpore or DLPack), got ", Py_TYPE(object.ptr())->tp_name));
}

Views Arrays::list(const char* arg, py::handle object) {
  if (!PyList_Check(object.ptr()) && !PyTuple_Check(object.ptr())) return {view(Name(arg), object)};
  const auto items = py::reinterpret_borrow<py::sequence>(object);
  Views views;
  views.reserve(items.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    const py::object item = items[i];
    views.push_back(view(Name(arg, static_cast<std::int64_t>(i)), item));
  }
  return views;
}

std::vector<Views> Arrays::lists(const char* arg, py::handle object) {
  if (!PyList_Check(object.ptr()) && !PyTuple_Check(object.ptr())) {
    throw TypeError(text(op_, ": ", arg, " must be a list of lists of arrays, got ", Py_TYPE(object.ptr())->tp_name));
  }
  std::vector<Views> result;
  std::size_t j = 0;
  for (py::handle item : object) result.push_back(list(text(arg, "[", j++, "]").c_str(), item));
  return result;
}

FixedArrays::FixedArrays(const char* op, const char* arg, py::handle objects) {
  Arrays arrays(op);
  views_ = arrays.list(arg, objects);
  for (py::handle object : objects) objects_.push_back(py::reinterpret_borrow<py::object>(object));
}

void FixedArrays::append_to(Views& views) const {
  static const auto& data_ptr = *new py::str("data_ptr");
  for (std::size_t i = 0; i < objects_.size(); ++i) {
    PyObject* address = PyObject_CallMethodNoArgs(objects_[i].ptr(), data_ptr.ptr());
    if (address == nullptr) throw py::error_already_set();
    views.push_back(views_[i]);
    views.back().data = reinterpret_cast<void*>(PyLong_AsSize_t(address));
    Py_DECREF(address);
  }
}

}  // namespace boost_ext
