// strided_copy: elements that lie anywhere in memory, into one piece. What transposes and slices are made of.
//
//   to[i0, i1, ...] = source[i0 strides[0] + i1 strides[1] + ...]
//
// source   elements of `item` bytes: 1, 2, 4, 8 or 16
// shape    of `to`, which is in C order
// strides  in elements, of any sign, 0 included
#pragma once

#include <vector>

#include "ops/runtime.h"

namespace boost_ext {

struct StridedCopy {
  std::int64_t item = 0;
  std::vector<std::int64_t> shape, strides;
};

// With as few axes as say the same: none of one element, and none that goes on where the next one ends.
StridedCopy merged(const StridedCopy& copy);

void strided_copy(const Context& context, const void* source, const StridedCopy& copy, void* to);

// As merged() makes them: `axes` of them, each of 2 elements or more.
BOOST_EXT_CPU_KERNEL(void, strided_copy, const Context&, const void* source, std::int64_t item, int axes,
                     const std::int64_t* shape, const std::int64_t* strides, void* to)

}  // namespace boost_ext
