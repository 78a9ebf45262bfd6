// Kernels in the place of MindSpore's own, in all its graphs on a CPU: those that move elements, which MindSpore does
// one at a time. It finds them by their names in the library that MS_OP_PLUGIN_PATH names (this one), and asks for no
// other then, so each takes all that MindSpore's takes. The names and the class below are its interface
// (include/mindspore/ops/kernel/cpu/op_plugin in its package).
#include <cctype>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ops/strided_copy.h"

namespace boost_ext::mindspore {

using Integers = std::vector<std::int64_t>;

struct StorageInfo {
  Integers strides;
  std::size_t offset;
};

// The arguments that are no tensors. The order of the functions is the interface; what is not called here returns
// anything. Not of this file alone: the compiler would know that nobody implements it, and call nothing.
class __attribute__((visibility("default"))) KernelInput {
 public:
  virtual ~KernelInput() = default;
  virtual bool is_scalar(std::size_t) = 0;
  virtual std::size_t size() = 0;
  virtual bool boolean(std::size_t) = 0;
  virtual std::int64_t integer(std::size_t) = 0;
  virtual double number(std::size_t) = 0;
  virtual void text(std::size_t) = 0;
  virtual Integers integers(std::size_t) = 0;
  virtual void numbers(std::size_t) = 0;
  virtual void integer_lists(std::size_t) = 0;
  virtual void number_lists(std::size_t) = 0;
  virtual int type(std::size_t) = 0;
  virtual std::optional<StorageInfo> storage(std::size_t) = 0;  // nothing: in C order
};

namespace {

// The bytes of an element, of a name such as "bool", "float32" or "complex64"; 0 if there are none.
std::int64_t item_of(const char* dtype) {
  if (std::strcmp(dtype, "bool") == 0) return 1;
  while (*dtype != '\0' && std::isdigit(static_cast<unsigned char>(*dtype)) == 0) ++dtype;
  const std::int64_t bits = std::strtol(dtype, nullptr, 10);
  for (const std::int64_t item : {1, 2, 4, 8, 16}) {
    if (bits == 8 * item) return item;
  }
  return 0;
}

// A call, as MindSpore makes it: inputs in their order, then the output.
struct KernelCall {
  int count;
  void** data;
  int* axes;
  std::int64_t** shapes;
  const char** dtypes;
  KernelInput& input;

  const char* source() const {
    const auto info = input.storage(0);
    return static_cast<const char*>(data[0]) + (info ? static_cast<std::int64_t>(info->offset) * item() : 0);
  }
  std::int64_t item() const { return item_of(dtypes[0]); }
  Integers shape() const { return {shapes[0], shapes[0] + axes[0]}; }
  Integers strides() const {
    if (const auto info = input.storage(0)) return info->strides;
    Integers strides(static_cast<std::size_t>(axes[0]));
    std::int64_t stride = 1;
    for (std::size_t axis = strides.size(); axis-- > 0; stride *= shapes[0][axis]) strides[axis] = stride;
    return strides;
  }
  // 0, or 1 where the elements are not those of the output.
  int write(std::int64_t offset, const StridedCopy& copy) const {
    std::int64_t size = 1, expected = 1;
    for (const std::int64_t n : copy.shape) size *= n;
    for (int axis = 0; axis < axes[count - 1]; ++axis) expected *= shapes[count - 1][axis];
    if (size != expected || copy.item == 0) return 1;
    strided_copy(cpu_context(), source() + offset * copy.item, copy, data[count - 1]);
    return 0;
  }
};

// x, perm
int transpose(const KernelCall& call) {
  const Integers shape = call.shape(), strides = call.strides();
  StridedCopy copy{call.item(), {}, {}};
  for (const std::int64_t of : call.input.integers(1)) {
    const auto axis = static_cast<std::size_t>(of < 0 ? of + call.axes[0] : of);
    copy.shape.push_back(shape[axis]);
    copy.strides.push_back(strides[axis]);
  }
  return call.write(0, copy);
}

// x, begin, end, strides, begin_mask, end_mask, ellipsis_mask, new_axis_mask, shrink_axis_mask: as NumPy slices, where
// a mask has the bit of an entry that is left out, `...`, None, or a single index.
int strided_slice(const KernelCall& call) {
  const Integers shape = call.shape(), strides = call.strides();
  const Integers begin = call.input.integers(1), end = call.input.integers(2), steps = call.input.integers(3);
  const auto has = [&](int mask, std::size_t entry) {
    return (call.input.integer(static_cast<std::size_t>(4 + mask)) >> entry & 1) != 0;
  };
  StridedCopy copy{call.item(), {}, {}};
  std::int64_t offset = 0;
  std::size_t axis = 0;
  const auto whole = [&] {
    copy.shape.push_back(shape[axis]);
    copy.strides.push_back(strides[axis++]);
  };
  for (std::size_t entry = 0; entry < begin.size(); ++entry) {
    if (has(2, entry)) {
      std::size_t after = 0;  // axes that the entries behind the ellipsis take
      for (std::size_t later = entry + 1; later < begin.size(); ++later) after += has(3, later) ? 0 : 1;
      while (axis + after < shape.size()) whole();
      continue;
    }
    if (has(3, entry)) continue;  // an axis of one element
    if (axis == shape.size()) return 1;
    const std::int64_t n = shape[axis], step = steps[entry];
    const auto from_start = [n](std::int64_t index) { return index < 0 ? index + n : index; };
    if (has(4, entry)) {
      const std::int64_t index = from_start(begin[entry]);
      if (index < 0 || index >= n) return 1;
      offset += index * strides[axis++];
      continue;
    }
    if (step == 0) return 1;
    const std::int64_t lowest = step > 0 ? 0 : -1, highest = step > 0 ? n : n - 1;
    const auto within = [=](std::int64_t index) { return index < lowest ? lowest : index > highest ? highest : index; };
    const std::int64_t first = has(0, entry) ? (step > 0 ? lowest : highest) : within(from_start(begin[entry]));
    const std::int64_t stop = has(1, entry) ? (step > 0 ? highest : lowest) : within(from_start(end[entry]));
    const std::int64_t count = (stop - first + step + (step > 0 ? -1 : 1)) / step;
    offset += first * strides[axis];
    copy.shape.push_back(count > 0 ? count : 0);
    copy.strides.push_back(step * strides[axis++]);
  }
  while (axis < shape.size()) whole();
  return call.write(offset, copy);
}

}  // namespace
}  // namespace boost_ext::mindspore

using namespace boost_ext::mindspore;

#define BOOST_EXT_EXPORTED extern "C" __attribute__((visibility("default")))

BOOST_EXT_EXPORTED int Transpose(int count, void** data, int* axes, std::int64_t** shapes, const char** dtypes, void*,
                                 void* input) {
  return transpose({count, data, axes, shapes, dtypes, *static_cast<KernelInput*>(input)});
}
BOOST_EXT_EXPORTED int StridedSlice(int count, void** data, int* axes, std::int64_t** shapes, const char** dtypes,
                                    void*, void* input) {
  return strided_slice({count, data, axes, shapes, dtypes, *static_cast<KernelInput*>(input)});
}
static const char* const registered[] = {"Transpose", "StridedSlice"};
BOOST_EXT_EXPORTED bool IsKernelRegistered(const char* name) {
  for (const char* known : registered) {
    if (std::strcmp(known, name) == 0) return true;
  }
  return false;
}
BOOST_EXT_EXPORTED int GetRegisteredOpCount() { return 2; }
BOOST_EXT_EXPORTED const char* const* GetAllRegisteredOps() { return registered; }
