// What every op is written in terms of: a View of an array that somebody else owns, the Context it runs in,
// the checks, and the choice of the kernel. The only header that knows which backends were built.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <ostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace boost_ext {

enum class DType : std::uint8_t { f32, f16, bf16, f64, i32, b8, u8, i8, i16, other };
// Those with a name, in the order in which messages name them.
constexpr DType kNamedDTypes[] = {DType::f32, DType::f16, DType::bf16, DType::f64, DType::i32,
                                  DType::b8,  DType::u8,  DType::i8,   DType::i16};
enum class Device : std::uint8_t { cpu, cuda, ascend };

constexpr std::int64_t item_size(DType t) {
  return t == DType::f64                                      ? 8
         : t == DType::f32 || t == DType::i32                 ? 4
         : t == DType::b8 || t == DType::u8 || t == DType::i8 ? 1
                                                              : 2;
}
const char* name(DType t);

// A dense array, in row-major order unless `layout` says so. `rows` is the extent of the first axis (1 for a scalar),
// height and width those of the last two (1 where there is none), ndim the number of axes; no op needs more of the
// shape than that.
struct View {
  void* data = nullptr;
  std::int64_t size = 0;
  std::int64_t rows = 1;
  std::int64_t height = 1;
  std::int64_t width = 1;
  int ndim = 1;
  DType dtype = DType::f32;
  Device device = Device::cpu;
  int device_id = 0;
  bool writable = true;
  const char* immutable = nullptr;  // the framework that never has its arrays written, for the message
  // Another dense order, of a number of its own for each shape and strides: where an op takes elements one by one, it
  // takes any order that all tensors of a place share.
  std::uint64_t layout = 0;
  const char* other_dtype = nullptr;  // how DType::other is called, for the message of the op that refuses it

  std::int64_t bytes() const { return size * item_size(dtype); }
  // extent(d) is the extent of axis d.
  template <class Extent> void set_shape(int axes, Extent extent) {
    ndim = axes;
    size = 1;
    for (int d = 0; d < axes; ++d) size *= extent(d);
    rows = axes > 0 ? extent(0) : 1;
    height = axes > 1 ? extent(axes - 2) : 1;
    width = axes > 0 ? extent(axes - 1) : 1;
  }
};
using Views = std::vector<View>;

// An argument that may be left out, and is.
inline bool is_none(const View& v) { return v.data == nullptr && v.size == 0; }

// One number of the caller's as an array, for an op to put its answer there.
inline View view_of(float& x) { return {&x, 1}; }
inline View view_of(double& x) {
  View v{&x, 1};
  v.dtype = DType::f64;
  return v;
}

const char* dtype_name(const View& v);

// A list of views as a kernel sees it.
struct Tensors {
  const View* data;
  std::int64_t count;
  Tensors(const View* d, std::int64_t n) : data(d), count(n) {}
  Tensors(const Views& v) : data(v.data()), count(static_cast<std::int64_t>(v.size())) {}  // NOLINT: same list
  const View& operator[](std::int64_t i) const { return data[i]; }
};

// Memory of a device from the framework of the caller's arrays, in the order of the stream of a call.
class Allocator {
 public:
  virtual void* allocate(int device_id, std::int64_t bytes, void** owner) const = 0;  // std::runtime_error
  virtual void release(void* owner) const noexcept = 0;

 protected:
  ~Allocator() = default;
};

struct Context {
  int device_id = 0;
  void* stream = nullptr;  // of a device: everything is enqueued there, and nothing waits for it
  int threads = 1;
  bool narrow_products = false;          // factors of products may be rounded to bfloat16
  const Allocator* allocator = nullptr;  // of a device: where kernels work beside their arrays; ours if there is none
};

// A number that the caller knows, or a float32 on the device of the arrays, which only kernels read.
struct Number {
  double value = 0;
  View at{};

  bool on_device() const { return at.device != Device::cpu; }
};

// A number that the caller knows, or a float32 array with one element or one for each tensor.
struct Factors {
  float value = 0;
  View at{};
  bool is_array = false;
  Factors(float v = 0) : value(v) {}                 // NOLINT: a number is one of them
  Factors(const View& v) : at(v), is_array(true) {}  // NOLINT: and so is an array
};

// The wrong kind of object or dtype; everything else that is wrong with an argument is std::invalid_argument.
struct TypeError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

template <class... Parts> std::string text(const Parts&... parts) {
  std::ostringstream s;
  (s << ... << parts);
  return s.str();
}

// "op: argument must ..., got ..." (house rule 3). The parts are only put together when the check fails.
template <class... Parts> void require(bool ok, const Parts&... parts) {
  if (!ok) throw std::invalid_argument(text(parts...));
}

// An argument as the user wrote it: "out", or "grads[3]".
struct Name {
  const char* arg;
  std::int64_t index = -1;
  Name(const char* a, std::int64_t i = -1) : arg(a), index(i) {}  // NOLINT: a plain string is a name
};
std::ostream& operator<<(std::ostream& s, const Name& n);

// Checks on one argument, shared by all ops.
void require_float(const char* op, Name arg, const View& v);  // float32, float16 or bfloat16
void require_dtype(const char* op, Name arg, const View& v, DType expected);
void require_size(const char* op, Name arg, const View& v, std::int64_t expected);
void require_matrix(const char* op, Name arg, const View& v);  // two axes, with rows of one element or more
float* floats(const char* op, Name arg, const View& v, std::int64_t expected);  // those of an array of this size
void require_layout(const char* op, Name arg, const View& v, Name other, const View& like);  // elements in one order
void require_writable(const char* op, Name arg, const View& v);
void require_result(const char* op, Name arg, const View& v, DType expected);  // one element, written
void require_finite(const char* op, const char* arg, double value);
void require_non_negative(const char* op, const char* arg, const std::vector<float>& values);

// One value for all tensors, or one for each.
template <class T>
std::vector<T> spread(const char* op, const char* arg, const std::vector<T>& values, std::size_t count, T missing) {
  if (values.empty()) return std::vector<T>(count, missing);
  if (values.size() == 1) return std::vector<T>(count, values[0]);
  require(values.size() == count, op, ": ", arg, " must hold one value, or one for each of the ", count,
          " parameters, got ", values.size());
  return values;
}

// One list of tensors as an argument.
struct List {
  const char* arg;
  const Views& views;
};
void require_floats(const char* op, const List& list);  // at least one, each of a floating dtype
void require_writables(const char* op, const List& list);
void require_same_count(const char* op, const List& list, const List& other);
void require_same_sizes(const char* op, const List& list, const List& other);  // and layouts
void require_same_dtypes(const char* op, const List& list, const List& other);

// Arguments with the same twin may be wholly the same memory. Twins are a place in lists (out[i] on a[i]), or
// repeated(), of a list in which an array may be listed twice.
constexpr std::int64_t kNoTwin = -1;
constexpr std::int64_t repeated(DType dtype) { return -2 - static_cast<std::int64_t>(dtype); }

// Collects every argument of a call and refuses overlaps in which something is written.
class Overlap {
 public:
  explicit Overlap(const char* op) : op_(op) {}
  void reads(Name arg, const View& v, std::int64_t twin = kNoTwin) { add(arg, v, false, twin); }
  void writes(Name arg, const View& v, std::int64_t twin = kNoTwin) { add(arg, v, true, twin); }
  void reads(const List& list, bool twins = false) { add(list, false, twins); }
  void writes(const List& list, bool twins = false) { add(list, true, twins); }
  void check();

 private:
  struct Span {
    const char* begin;
    const char* end;
    Name arg;
    std::int64_t twin;
    bool write;
  };
  void add(Name arg, const View& v, bool write, std::int64_t twin);
  void add(const List& list, bool write, bool twins);
  const char* op_;
  std::vector<Span> spans_;
};

// For every tensor the index of the first one with the same memory: a tensor that is listed twice (tied weights) is
// one tensor. Partial overlaps are for Overlap to refuse.
std::vector<std::size_t> first_occurrence(const Views& views);
Views without_repeats(const Views& views, const std::vector<std::size_t>& first);

// All arguments live on one device, and this build has a backend for it: which one. Arrays without elements live
// anywhere.
enum class Devices : std::uint8_t { cpu, cpu_and_cuda, all };
Device require_one_device(const char* op, const std::vector<Tensors>& lists, Devices devices);
Device require_device(const char* op, std::initializer_list<const Views*> lists,
                      std::initializer_list<View> views = {});  // not Ascend
// The same for ops that only the CPU has.
void require_cpu(const char* op, std::initializer_list<const Views*> lists, std::initializer_list<View> views = {});

std::int64_t total_size(const Views& views);

}  // namespace boost_ext
