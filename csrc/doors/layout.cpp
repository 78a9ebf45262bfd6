#include "doors/layout.h"

#include <algorithm>
#include <limits>

namespace boost_ext {
namespace {

constexpr std::int64_t kMaxAxes = 64;                                                // NumPy's and PyTorch's bound
constexpr std::int64_t kMaxElements = std::numeric_limits<std::int64_t>::max() / 8;  // of the widest dtype, in bytes

struct Axis {
  std::int64_t extent, stride;
};

// Hundreds of tensors come with each step of an optimizer, so they are on the stack.
struct Axes {
  Axis at[kMaxAxes];
  std::int64_t count = 0;

  const Axis* begin() const { return at; }
  const Axis* end() const { return at + count; }
};

bool row_major(const Axes& axes, std::int64_t unit) {
  std::int64_t expected = unit;
  for (std::int64_t d = axes.count; d-- > 0;) {
    if (axes.at[d].stride != expected) return false;
    expected *= axes.at[d].extent;
  }
  return true;
}

// Of the axes in the order of the shape. Mixed by the finalizer of splitmix64, so that two orders share a number by an
// accident of 2^-64.
std::uint64_t order_of(const Axes& axes) {
  auto h = static_cast<std::uint64_t>(axes.count);
  for (const Axis& a : axes) {
    for (const std::int64_t part : {a.extent, a.stride}) {
      h = (h ^ static_cast<std::uint64_t>(part)) + 0x9e3779b97f4a7c15u;
      h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9u;
      h = (h ^ (h >> 27)) * 0x94d049bb133111ebu;
      h ^= h >> 31;
    }
  }
  return h | 1;
}

}  // namespace

void set_layout(View& v, const char* op, const Name& arg, std::int64_t ndim, const std::int64_t* shape,
                const std::int64_t* strides, std::int64_t unit) {
  require(ndim >= 0 && ndim <= kMaxAxes, op, ": ", arg, " must have 0 to ", kMaxAxes, " axes, got ", ndim);
  require(ndim == 0 || shape != nullptr, op, ": ", arg, " must have a shape, got none");
  std::int64_t elements = 1;  // of the axes that have some: so no product of extents overflows, in whatever order
  for (std::int64_t d = 0; d < ndim; ++d) {
    require(shape[d] >= 0, op, ": ", arg, " must have extents >= 0, got ", shape[d]);
    if (shape[d] == 0) continue;
    require(shape[d] <= kMaxElements / elements, op, ": ", arg, " must have fewer than 2**63 bytes, got an extent of ",
            shape[d], " beside ", elements, " elements");
    elements *= shape[d];
  }
  v.set_shape(static_cast<int>(ndim), [shape](int d) { return shape[d]; });
  if (strides == nullptr || v.size == 0) return;
  Axes axes;  // but those of one element, which lie anywhere
  for (std::int64_t d = 0; d < ndim; ++d) {
    if (shape[d] != 1) axes.at[axes.count++] = {shape[d], strides[d]};
  }
  if (row_major(axes, unit)) return;
  Axes in_memory = axes;
  std::sort(in_memory.at, in_memory.at + in_memory.count,
            [](const Axis& a, const Axis& b) { return a.stride > b.stride; });
  require_contiguous(op, arg, row_major(in_memory, unit));
  for (std::int64_t d = 0; d < axes.count; ++d) axes.at[d].stride /= unit;
  v.layout = order_of(axes);
}

void require_contiguous(const char* op, const Name& arg, bool ok) {
  require(ok, op, ": ", arg, " must be C-contiguous, got a strided array");
}

void require_aligned(const char* op, const Name& arg, bool ok) {
  require(ok, op, ": ", arg, " must be aligned to its element size, got an unaligned array");
}

}  // namespace boost_ext
