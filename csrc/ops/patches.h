// What the output positions of a convolution see of its images.
#pragma once

#include <vector>

#include "ops/tensor.h"

namespace boost_ext {

struct Patches {
  std::int64_t n, c, h, w;         // images
  std::int64_t kh = 1, kw = 1;     // kernel
  std::int64_t sh = 1, sw = 1;     // stride
  std::int64_t dh = 1, dw = 1;     // dilation
  std::int64_t top = 0, left = 0;  // padding before
  std::int64_t oh = 1, ow = 1;     // output positions
  std::int64_t size() const { return c * kh * kw; }
  std::int64_t rows() const { return n * oh * ow; }
};

// The numbers in their order: 14 of them, or std::invalid_argument.
template <class Numbers> Patches patches_of(const char* op, const Numbers& v) {
  require(v.size() == 14, op, ": patches must hold 14 numbers, got ", v.size());
  return {v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7], v[8], v[9], v[10], v[11], v[12], v[13]};
}

inline void require_extents(const char* op, const Patches& p) {
  for (std::int64_t extent : {p.c, p.kh, p.kw, p.sh, p.sw, p.dh, p.dw}) {
    require(extent >= 1, op, ": channels, kernel, stride and dilation must be >= 1, got ", extent);
  }
  for (std::int64_t extent : {p.n, p.h, p.w, p.top, p.left, p.oh, p.ow}) {
    require(extent >= 0, op, ": images, padding and output positions must be >= 0, got ", extent);
  }
}

}  // namespace boost_ext
