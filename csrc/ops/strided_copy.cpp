#include "ops/strided_copy.h"

namespace boost_ext {

StridedCopy merged(const StridedCopy& copy) {
  StridedCopy few{copy.item, {}, {}};
  for (std::size_t axis = 0; axis < copy.shape.size(); ++axis) {
    const std::int64_t n = copy.shape[axis], stride = copy.strides[axis];
    if (n == 1) continue;
    if (!few.shape.empty() && few.strides.back() == n * stride) {
      few.shape.back() *= n;
      few.strides.back() = stride;
    } else {
      few.shape.push_back(n);
      few.strides.push_back(stride);
    }
  }
  return few;
}

void strided_copy(const Context& context, const void* source, const StridedCopy& copy, void* to) {
  for (const std::int64_t n : copy.shape) {
    if (n == 0) return;
  }
  const StridedCopy few = merged(copy);
  BOOST_EXT_CPU(strided_copy)
  (context, source, few.item, static_cast<int>(few.shape.size()), few.shape.data(), few.strides.data(), to);
}

}  // namespace boost_ext
