#include "doors/arrays.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <cstring>
#include <unordered_map>
#include <utility>

#include "doors/array_type.h"
#include "doors/ascend_arrays.h"
#include "doors/cuda_arrays.h"
#include "doors/dtypes.h"
#include "doors/layout.h"

namespace py = pybind11;

namespace boost_ext {

View Arrays::from_numpy(const Name& arg, py::array array) {
  View v;
  set_dtype(v, op_, arg, array);
  const bool row_major = (array.flags() & py::array::c_style) != 0;
  require_contiguous(op_, arg, row_major || v.dtype != DType::other);
  require_aligned(op_, arg, (array.flags() & py::detail::npy_api::NPY_ARRAY_ALIGNED_) != 0);
  v.data = const_cast<void*>(array.data());
  if (row_major)
    v.set_shape(static_cast<int>(array.ndim()), [&](int d) { return array.shape(d); });
  else
    set_layout(v, op_, arg, array.ndim(), array.shape(), array.strides(), array.itemsize());
  v.writable = array.writeable();
  return v;
}

namespace {

py::object attribute(py::handle object, const py::object& name) {
  PyObject* value = PyObject_GetAttr(object.ptr(), name.ptr());
  if (value == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(value);
}

// How a type of MindSpore tensors is asked. Its properties and methods in Python call those of a native base class, and
// take twice the time, for each tensor in each step: those of the base are called at once, if it has them.
class TensorType {
 public:
  static const TensorType& of(py::handle tensor) {
    static auto& known = *new std::unordered_map<PyTypeObject*, TensorType>;
    const auto found = known.find(Py_TYPE(tensor.ptr()));
    if (found != known.end()) return found->second;
    return known.emplace(Py_TYPE(tensor.ptr()), TensorType(py::type::of(tensor))).first->second;
  }
  py::object dtype(py::handle tensor) const { return attribute(tensor, dtype_); }
  py::object shape(py::handle tensor) const { return attribute(tensor, shape_); }
  std::size_t nbytes(py::handle tensor) const { return attribute(tensor, nbytes_).cast<std::size_t>(); }
  bool is_contiguous(py::handle tensor) const { return call(is_contiguous_, tensor).ptr() == Py_True; }
  // This waits for the asynchronous queue, and the address is good until the next op is launched.
  std::uintptr_t address(py::handle tensor) const { return call(data_ptr_, tensor).cast<std::uintptr_t>(); }

 private:
  explicit TensorType(const py::type& type)
      : type_(type),
        dtype_(name(type, "dtype")),
        shape_(name(type, "shape")),
        nbytes_(name(type, "nbytes")),
        data_ptr_(type.attr("data_ptr")),
        is_contiguous_(type.attr("is_contiguous")) {
    for (py::handle base : type.attr("__mro__")) {
      if (base.attr("__module__").cast<std::string>() != "mindspore._c_expression") continue;
      if (py::hasattr(base, "_data_ptr")) data_ptr_ = base.attr("_data_ptr");
      if (py::hasattr(base, "is_contiguous")) is_contiguous_ = base.attr("is_contiguous");
      return;
    }
  }
  static py::str name(const py::type& type, const std::string& name) {
    return py::str(py::hasattr(type, ("_" + name).c_str()) ? "_" + name : name);
  }
  static py::object call(const py::object& method, py::handle tensor) {
    PyObject* value = PyObject_CallOneArg(method.ptr(), tensor.ptr());
    if (value == nullptr) throw py::error_already_set();
    return py::reinterpret_steal<py::object>(value);
  }

  py::type type_;  // its address stays its own
  py::str dtype_, shape_, nbytes_;
  py::object data_ptr_, is_contiguous_;
};

}  // namespace

View Arrays::from_mindspore(const Name& arg, py::handle object) {
  const TensorType& type = TensorType::of(object);
  View v;
  set_dtype(v, type.dtype(object));
  const auto shape = py::reinterpret_borrow<py::tuple>(type.shape(object));
  v.set_shape(static_cast<int>(shape.size()),
              [&](int d) { return shape[static_cast<std::size_t>(d)].cast<std::int64_t>(); });
  if (v.size > 0) require_contiguous(op_, arg, type.is_contiguous(object));
  const bool with_ascend = ascend::build() != nullptr;
  if (!on_device_known_) on_one_device_ = !with_ascend && all_on_cpu(object);
  on_device_known_ = true;
  if (!on_one_device_) {
    const auto device = py::cast<std::string>(object.attr("device"));
    mindspore_device_ = device.compare(0, 6, "Ascend") == 0 ? Device::ascend : Device::cpu;
    if (mindspore_device_ == Device::ascend) v.device_id = ascend_device_id(device);
  }
  v.device = mindspore_device_;
  if (v.device == Device::ascend && with_ascend) see_device(v, [&] { return current_ascend_stream(op_, object); });
  v.data = reinterpret_cast<void*>(type.address(object));  // last
  return v;
}

// A producer from before DLPack 1.0 knows no max_version. On a device it makes its data ready for our stream.
py::object Arrays::capsule_of(const Name& arg, py::handle object, bool on_device) {
  py::dict keywords;
  if (on_device) keywords["stream"] = number_of_stream(device_context_.stream);
  try {
    try {
      return object.attr("__dlpack__")(py::arg("max_version") = py::make_tuple(1, 0), **keywords);
    } catch (py::error_already_set& e) {
      if (!e.matches(PyExc_TypeError)) throw;
      return object.attr("__dlpack__")(**keywords);
    }
  } catch (py::error_already_set& e) {
    throw std::invalid_argument(text(op_, ": ", arg, " cannot be read through DLPack: ", first_line(e)));
  }
}

void Arrays::see_device(const View& v, const std::function<void*()>& stream) {
  if (on_device_ && (has_elements_ || v.size == 0)) return;
  on_device_ = true;
  has_elements_ = v.size > 0;
  on_ascend_ = v.device == Device::ascend;
  device_context_.device_id = v.device_id;
  device_context_.stream = stream();
  device_context_.allocator = nullptr;
  seen_.clear();
}

Arrays::~Arrays() {
  for (const Context& owner : owners_) cuda::try_order_after(owner.stream, device_context_);
}

// What is still to happen to an array happens first.
void Arrays::see_work_of(const Context& context) {
  if (context.stream == device_context_.stream) return;
  for (const Context& seen : seen_) {
    if (seen.stream == context.stream && seen.device_id == context.device_id) return;
  }
  cuda::order_after(device_context_.stream, context);
  seen_.push_back(context);
}

View Arrays::from_cuda(const Name& arg, py::handle object) {
  View v;
  v.device = Device::cuda;
  if (cuda::build() == nullptr) return v;
  CudaArray array = from_cuda_array_interface(op_, arg, object);
  see_device(array.view, [&] { return current_stream(object, array.view.device_id); });
  if (array.names_stream && array.view.size > 0) see_work_of({array.view.device_id, array.stream});
  keep_shape(std::move(array.shape));
  return array.view;
}

Context Arrays::context() const { return on_device_ ? device_context_ : cpu_context(); }

Number Arrays::number(const char* arg, py::handle object, DType dtype) {
  if (PyFloat_Check(object.ptr()) || PyLong_Check(object.ptr())) return {object.cast<double>(), {}};
  const View v = one(arg, object);
  if (v.device != Device::cpu && cuda::build() == nullptr) return {0, v};  // for the op to refuse
  require_dtype(op_, arg, v, dtype);
  require_size(op_, arg, v, 1);
  if (v.device != Device::cpu) return {0, v};
  if (dtype == DType::i32) return {static_cast<double>(*static_cast<const std::int32_t*>(v.data)), {}};
  return {static_cast<double>(*static_cast<const float*>(v.data)), {}};
}

// Memory that MindSpore could take over is only MindSpore's to make.
void Arrays::require_results(const char* arg) const {
  require(!on_ascend(), op_, ": ", arg, " must be given for Ascend tensors, got none");
}

View Arrays::result(const char* arg, py::handle out, DType dtype, std::vector<std::int64_t> shape, py::object& keep) {
  if (!out.is_none()) {
    keep = py::reinterpret_borrow<py::object>(out);
    return one(arg, out, kWritten);
  }
  require_results(arg);
  if (on_device_)
    keep = py::cast(DeviceArray(op_, device_context_, dtype, std::move(shape)));
  else
    keep = py::array(py::dtype(name(dtype)), std::move(shape));
  return one(arg, keep);
}

void Arrays::keep_shape(std::vector<std::int64_t> shape) {
  shapes_.resize(count_ + 1);
  shapes_[count_] = std::move(shape);
}

std::vector<std::int64_t> Arrays::shape_of(std::size_t i, py::handle object, const View& v) const {
  if (v.ndim == 0) return {};
  if (i < shapes_.size() && !shapes_[i].empty()) return shapes_[i];
  return object.attr("shape").cast<std::vector<std::int64_t>>();
}

// The arrays of `model` are the first of the call.
Views Arrays::results(const char* arg, py::handle out, py::handle model, Tensors like, py::object& keep, unsigned use) {
  keep = py::reinterpret_borrow<py::object>(out);
  if (!out.is_none()) return list(arg, out, kWritten | use);
  if (!on_device_) return {};
  require_results(arg);
  const bool alone = !PyList_Check(model.ptr()) && !PyTuple_Check(model.ptr());
  py::list arrays;
  for (std::int64_t i = 0; i < like.count; ++i) {
    const py::object item = alone ? py::reinterpret_borrow<py::object>(model) : py::object(model[py::int_(i)]);
    const auto shape = shape_of(static_cast<std::size_t>(i), item, like[i]);
    arrays.append(DeviceArray(op_, device_context_, like[i].dtype, shape));
  }
  keep = alone ? py::object(arrays[0]) : arrays;
  return list(arg, keep);
}

View Arrays::from_dlpack(const Name& arg, py::handle object) {
  View v;
  std::pair<std::int32_t, std::int32_t> where;
  try {
    where = object.attr("__dlpack_device__")().cast<std::pair<std::int32_t, std::int32_t>>();
  } catch (const py::cast_error&) {
    throw TypeError(text(op_, ": ", arg, " must return two integers from __dlpack_device__, got something else"));
  }
  const dlpack::Device device{where.first, where.second};
  require_reachable(op_, arg, device);
  const bool on_device = is_cuda(device);
  if (on_device) {
    v.device = Device::cuda;
    v.device_id = device.id;
    if (cuda::build() == nullptr) return v;  // for the op to refuse; the data are not touched here
    v.size = 1;                              // as far as is known yet
    see_device(v, [&] { return current_stream(object, device.id); });
  }
  py::object capsule = capsule_of(arg, object, on_device);
  const dlpack::Tensor* t = nullptr;
  if (PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned") != 0) {
    auto* managed = static_cast<dlpack::ManagedVersioned*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor_versioned"));
    set_tensor(v, op_, arg, *managed);
    t = &managed->tensor;
  } else if (PyCapsule_IsValid(capsule.ptr(), "dltensor") != 0) {
    t = &static_cast<dlpack::Managed*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"))->tensor;
    set_tensor(v, op_, arg, *t);
  }
  require(t != nullptr, op_, ": ", arg, " must return a DLPack capsule from __dlpack__, got something else");
  alive_.push_back(std::move(capsule));
  keep_shape({t->shape, t->shape + t->ndim});
  return v;
}

// As PyTorch's own functions that write: what it records it could not follow.
void Arrays::require_no_gradient(const Name& arg, py::handle object) {
  static const auto& requires_grad = *new py::str("requires_grad");
  if (gradient_recorded_ && !*gradient_recorded_) return;
  PyObject* required = PyObject_GetAttr(object.ptr(), requires_grad.ptr());
  if (required == nullptr) throw py::error_already_set();
  Py_DECREF(required);  // True and False live for ever
  if (required != Py_True) return;
  if (!gradient_recorded_) { gradient_recorded_ = py::module_::import("torch").attr("is_grad_enabled")().cast<bool>(); }
  require(
      !*gradient_recorded_, op_, ": ", arg,
      " must not require a gradient while PyTorch records them (call this under torch.no_grad(), or detach() it), got "
      "a tensor that does");
}

// As above, without a call of Python, on the stream on which its framework works.
View Arrays::from_exchange(const Name& arg, py::handle object, const ArrayType& type) {
  // PyTorch's tensors, by the hundred in a step, are kept by `alive_` and are never read-only.
  const bool borrows = type.is_torch && type.exchange->tensor_from_object != nullptr;
  const dlpack::ManagedVersioned* lent = nullptr;
  if (!borrows) lent = lent_.emplace_back(tensor_of(op_, arg, object, *type.exchange)).get();
  const dlpack::Tensor t = borrows ? borrowed_tensor_of(op_, arg, object, *type.exchange) : lent->tensor;
  require_reachable(op_, arg, t.device);
  View v;
  if (is_cuda(t.device)) {
    v.device = Device::cuda;
    v.device_id = t.device.id;
    if (cuda::build() == nullptr) return v;
  }
  if (borrows)
    set_tensor(v, op_, arg, t);
  else
    set_tensor(v, op_, arg, *lent);
  if (is_cuda(t.device)) {
    void* working = work_stream(op_, arg, *type.exchange, t.device);
    see_device(v, [&] { return chosen_stream().value_or(working); });
    // In the order of the framework's stream, so it must be ours.
    if (device_context_.stream == working) device_context_.allocator = allocator_of(*type.exchange);
    if (v.size > 0) see_work_of({t.device.id, working});
  }
  if (!borrows) keep_shape({t.shape, t.shape + t.ndim});
  return v;
}

View Arrays::view(const Name& arg, py::handle object, unsigned use, const char* wanted) {
  alive_.push_back(py::reinterpret_borrow<py::object>(object));  // a list may lose its items during the call
  const ArrayType type = array_type_of(object);
  View v = convert(arg, object, type, wanted);
  ++count_;
  require_contiguous(op_, arg, v.layout == 0 || (use & kAnyOrder) != 0);
  v.immutable = type.immutable;
  is_torch_ = is_torch_ || type.is_torch;
  if (type.is_torch && (use & kWritten) != 0) written_.append(object);
  // A MindSpore tensor that only has an initializer yet, for one.
  const bool is_used = v.device != Device::ascend || ascend::build() != nullptr;
  require(v.size == 0 || v.data != nullptr || !is_used, op_, ": ", arg,
          " must have its memory allocated, got an array without (a lazily initialised tensor needs init_data())");
  return v;
}

View Arrays::convert(const Name& arg, py::handle object, const ArrayType& type, const char* wanted) {
  if (type.is_distributed) {
    throw TypeError(text(op_, ": ", arg, " must be a tensor of this process alone, such as x.to_local(), got ",
                         Py_TYPE(object.ptr())->tp_name));
  }
  if (type.is_torch) require_no_gradient(arg, object);
  switch (type.kind) {
    case ArrayType::numpy:
      return from_numpy(arg, py::reinterpret_borrow<py::array>(object));
    case ArrayType::mindspore:
      return from_mindspore(arg, object);
    case ArrayType::dlpack:
      if (type.exchange != nullptr) return from_exchange(arg, object, type);
      // An older PyTorch hands out nothing that requires a gradient, though none is recorded here.
      return from_dlpack(
          arg, type.is_torch ? py::object(object.attr("detach")()) : py::reinterpret_borrow<py::object>(object));
    case ArrayType::ours: {
      const auto& array = object.cast<const DeviceArray&>();
      const View v = array.view();
      see_device(v, [&] { return current_stream(object, v.device_id); });
      see_work_of(array.context());
      if (array.context().stream != device_context_.stream) owners_.push_back(array.context());
      keep_shape(array.shape());
      return v;
    }
    case ArrayType::cuda:
      return from_cuda(arg, object);
    case ArrayType::unknown:
      break;
  }
  const bool is_missing = object.is_none() && arg.index >= 0;
  throw TypeError(text(op_, ": ", arg, " must be ", wanted, " (NumPy, MindSpore or DLPack), got ",
                       is_missing ? "None (a parameter without a gradient is left out, in every list)"
                                  : Py_TYPE(object.ptr())->tp_name));
}

void Arrays::tell_written() {
  if (written_.empty()) return;
  py::module_::import("torch").attr("autograd").attr("graph").attr("increment_version")(written_);
}

Views Arrays::list(const char* arg, py::handle object, unsigned use) {
  if (!PyList_Check(object.ptr()) && !PyTuple_Check(object.ptr())) {
    return {view(Name(arg), object, use, "an array or a list or tuple of arrays")};
  }
  const auto items = py::reinterpret_borrow<py::sequence>(object);
  Views views;
  views.reserve(items.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    const py::object item = items[i];
    views.push_back(view(Name(arg, static_cast<std::int64_t>(i)), item, use));
  }
  return views;
}

std::vector<Views> Arrays::lists(const char* arg, py::handle object, unsigned use) {
  if (!PyList_Check(object.ptr()) && !PyTuple_Check(object.ptr())) {
    throw TypeError(
        text(op_, ": ", arg, " must be a list or tuple of lists of arrays, got ", Py_TYPE(object.ptr())->tp_name));
  }
  std::vector<Views> result;
  std::size_t j = 0;
  for (py::handle item : object) result.push_back(list(text(arg, "[", j++, "]").c_str(), item, use));
  return result;
}

namespace {

bool same(const py::object& a, const py::object& b) {
  const int equal = a.ptr() == b.ptr() ? 1 : PyObject_RichCompareBool(a.ptr(), b.ptr(), Py_EQ);
  if (equal < 0) throw py::error_already_set();
  return equal == 1;
}

std::string named(const py::object& tensor) {
  return py::str(py::getattr(tensor, "name", py::str("a Tensor"))).cast<std::string>();
}

}  // namespace

FixedArrays::FixedArrays(std::string owner, py::handle objects) : owner_(std::move(owner)) {
  const bool several = PyList_Check(objects.ptr()) || PyTuple_Check(objects.ptr());
  const py::object all = several ? py::reinterpret_borrow<py::object>(objects) : py::make_tuple(objects);
  for (py::handle object : all) {
    if (array_type_of(object).kind != ArrayType::mindspore) {
      throw TypeError(text(owner_, ": tensors[", items_.size(), "] must be a Tensor of MindSpore, got ",
                           Py_TYPE(object.ptr())->tp_name));
    }
    Item item;
    item.object = py::reinterpret_borrow<py::object>(object);
    item.dtype = TensorType::of(object).dtype(object);
    item.shape = TensorType::of(object).shape(object);
    set_dtype(item.view, item.dtype);
    const auto shape = item.shape.cast<std::vector<std::int64_t>>();
    item.view.set_shape(static_cast<int>(shape.size()), [&](int d) { return shape[static_cast<std::size_t>(d)]; });
    const auto device = py::str(object.attr("device")).cast<std::string>();
    item.view.device = device.compare(0, 6, "Ascend") == 0 ? Device::ascend : Device::cpu;
    items_.push_back(std::move(item));
  }
}

void FixedArrays::require_same(const Item& item) const {
  const TensorType& type = TensorType::of(item.object);
  const py::object dtype = type.dtype(item.object), shape = type.shape(item.object);
  if (same(dtype, item.dtype) && same(shape, item.shape)) return;
  const auto described = [](const py::object& d, const py::object& s) {
    return py::str(d).cast<std::string>() + " " + py::str(s).cast<std::string>();
  };
  throw std::invalid_argument(text(owner_, ": ", named(item.object), " must keep its dtype and shape, ",
                                   described(item.dtype, item.shape), ", got ", described(dtype, shape),
                                   " (change it before the optimizer and the training cell are made)"));
}

void FixedArrays::require_same() const {
  for (const Item& item : items_) require_same(item);
}

// What changes dtype, shape or strides moves the storage, too: they are asked where that has happened. The number of
// bytes is asked always.
void FixedArrays::append_to(Views& views) {
  for (Item& item : items_) {
    const TensorType& type = TensorType::of(item.object);
    const std::uintptr_t address = type.address(item.object);
    const std::size_t bytes = type.nbytes(item.object);
    if (address != item.address || bytes != item.bytes) {
      require_same(item);
      require(item.view.size == 0 || address != 0, owner_, ": ", named(item.object),
              " must have its memory allocated, got a Tensor without");
      require(item.view.size == 0 || type.is_contiguous(item.object), owner_, ": ", named(item.object),
              " must be C-contiguous, got a strided Tensor");
      item.address = address, item.bytes = bytes;
    }
    views.push_back(item.view);
    views.back().data = reinterpret_cast<void*>(address);
  }
}

}  // namespace boost_ext
