#include "doors/dlpack_arrays.h"

#include <cstring>
#include <map>

#include "doors/dtypes.h"
#include "doors/layout.h"

namespace py = pybind11;

namespace boost_ext {
namespace {

constexpr std::uint32_t kMajor = 1;  // the version whose structures we know

[[noreturn]] void refuse(const char* op, const Name& arg) {
  std::string reason = "its type gives no reason";
  if (PyErr_Occurred() != nullptr) reason = first_line(py::error_already_set());
  throw std::invalid_argument(text(op, ": ", arg, " cannot be read through DLPack: ", reason));
}

}  // namespace

// Frameworks append where in their C++, and Python's error where in Python.
std::string first_line(const py::error_already_set& e) {
  const char* what = e.what();
  return std::string(what, std::strcspn(what, "\n"));
}

bool is_cuda(const dlpack::Device& device) {
  return device.type == dlpack::kCuda || device.type == dlpack::kCudaManaged;
}

void require_reachable(const char* op, const Name& arg, const dlpack::Device& device) {
  require(is_cuda(device) || device.type == dlpack::kCpu || device.type == dlpack::kCudaHost, op, ": ", arg,
          " must live on a CPU or CUDA device, got DLPack device type ", device.type);
}

void set_tensor(View& v, const char* op, const Name& arg, const dlpack::Tensor& t) {
  set_dtype(v, t.dtype);
  set_layout(v, op, arg, t.ndim, t.shape, t.strides, 1);
  v.data = t.data == nullptr ? nullptr : static_cast<char*>(t.data) + t.byte_offset;
  require_aligned(op, arg,
                  v.dtype == DType::other || reinterpret_cast<std::uintptr_t>(v.data) % item_size(v.dtype) == 0);
}

void set_tensor(View& v, const char* op, const Name& arg, const dlpack::ManagedVersioned& managed) {
  require(managed.version.major == kMajor, op, ": ", arg, " must be DLPack version ", kMajor, ", got version ",
          managed.version.major);
  v.writable = (managed.flags & dlpack::kReadOnly) == 0;
  set_tensor(v, op, arg, managed.tensor);
}

const dlpack::Exchange* exchange_of(py::handle type) {
  const py::object capsule = py::getattr(type, "__dlpack_c_exchange_api__", py::none());
  constexpr const char* name = "dlpack_exchange_api";
  if (PyCapsule_IsValid(capsule.ptr(), name) == 0) return nullptr;
  auto* header = static_cast<dlpack::ExchangeHeader*>(PyCapsule_GetPointer(capsule.ptr(), name));
  while (header != nullptr && header->version.major > kMajor) header = header->previous;
  if (header == nullptr || header->version.major != kMajor) return nullptr;
  return reinterpret_cast<const dlpack::Exchange*>(header);  // its first member
}

LentTensor tensor_of(const char* op, const Name& arg, py::handle object, const dlpack::Exchange& exchange) {
  dlpack::ManagedVersioned* managed = nullptr;
  if (exchange.managed_from_object(object.ptr(), &managed) != 0 || managed == nullptr) refuse(op, arg);
  return LentTensor(managed);
}

dlpack::Tensor borrowed_tensor_of(const char* op, const Name& arg, py::handle object,
                                  const dlpack::Exchange& exchange) {
  dlpack::Tensor tensor{};
  if (exchange.tensor_from_object(object.ptr(), &tensor) != 0) refuse(op, arg);
  return tensor;
}

namespace {

class OfFramework : public Allocator {
 public:
  explicit OfFramework(const dlpack::Exchange& exchange) : exchange_(exchange) {}

  void* allocate(int device_id, std::int64_t bytes, void** owner) const override {
    dlpack::Tensor like{};
    like.device = {dlpack::kCuda, device_id};
    like.ndim = 1;
    like.dtype = {dlpack::kUInt, 8, 1};
    like.shape = &bytes;
    std::string reason = "no reason was given";
    dlpack::ManagedVersioned* managed = nullptr;
    const int status =
        exchange_.allocate(&like, &managed, &reason, [](void* to, const char* kind, const char* message) {
          *static_cast<std::string*>(to) = text(kind, ": ", message);
        });
    LentTensor made(managed);
    if (status != 0 || made == nullptr) {
      throw std::runtime_error(text("CUDA: memory: the framework of the arrays has none: ", reason));
    }
    void* data = static_cast<char*>(made->tensor.data) + made->tensor.byte_offset;
    if (data == nullptr || reinterpret_cast<std::uintptr_t>(data) % 16 != 0) {
      throw std::runtime_error("CUDA: memory: what the framework of the arrays gives must be aligned to 16 bytes");
    }
    *owner = made.release();
    return data;
  }
  void release(void* owner) const noexcept override { GiveBack()(static_cast<dlpack::ManagedVersioned*>(owner)); }

 private:
  const dlpack::Exchange& exchange_;
};

}  // namespace

const Allocator* allocator_of(const dlpack::Exchange& exchange) {
  if (exchange.allocate == nullptr) return nullptr;
  static auto& known = *new std::map<const dlpack::Exchange*, OfFramework>();  // under the GIL
  return &known.try_emplace(&exchange, exchange).first->second;
}

void* work_stream(const char* op, const Name& arg, const dlpack::Exchange& exchange, const dlpack::Device& device) {
  void* stream = nullptr;
  if (exchange.current_work_stream(static_cast<dlpack::DeviceType>(device.type), device.id, &stream) != 0) {
    refuse(op, arg);
  }
  return stream;
}

}  // namespace boost_ext
