// The part of the DLPack ABI (version 1, and the unversioned one before it) that reading a tensor needs, by a capsule
// or by the functions of its type. https://dmlc.github.io/dlpack/latest/c_api.html
#pragma once

#include <cstdint>

namespace boost_ext::dlpack {

enum DeviceType : std::int32_t { kCpu = 1, kCuda = 2, kCudaHost = 3, kCudaManaged = 13 };
enum TypeCode : std::uint8_t { kInt = 0, kUInt = 1, kFloat = 2, kBfloat = 4, kComplex = 5, kBool = 6 };
constexpr std::uint64_t kReadOnly = 1;

struct Device {
  std::int32_t type;
  std::int32_t id;
};
struct DataType {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};
struct Tensor {
  void* data;
  Device device;
  std::int32_t ndim;
  DataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;
  std::uint64_t byte_offset;
};
struct Managed {
  Tensor tensor;
  void* context;
  void (*deleter)(Managed*);
};
struct Version {
  std::uint32_t major;
  std::uint32_t minor;
};
struct ManagedVersioned {
  Version version;
  void* context;
  void (*deleter)(ManagedVersioned*);
  std::uint64_t flags;
  Tensor tensor;
};

// What a type of arrays has as __dlpack_c_exchange_api__, since DLPack 1.3. The functions need the GIL, return 0, or -1
// with a Python error set, and synchronize nothing.
struct ExchangeHeader {
  Version version;
  ExchangeHeader* previous;  // the same of an older version, if there is one
};
struct Exchange {
  ExchangeHeader header;
  // A new tensor like the prototype, whose data are nobody's. It needs no GIL, and tells set_error why it returns -1.
  int (*allocate)(Tensor* prototype, ManagedVersioned** out, void* error,
                  void (*set_error)(void* error, const char* kind, const char* message));
  int (*managed_from_object)(void* object, ManagedVersioned** out);
  void* managed_to_object;
  // What describes an object as long as that lives and is not changed. May be nullptr.
  int (*tensor_from_object)(void* object, Tensor* out);
  int (*current_work_stream)(DeviceType type, std::int32_t id, void** out);
};

}  // namespace boost_ext::dlpack
