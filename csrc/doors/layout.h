// Where the elements of an array lie, of whatever door: shape and strides become those of a view.
#pragma once

#include <cstdint>

#include "ops/tensor.h"

namespace boost_ext {

// Strides in units of `unit`, and the elements so far apart; nullptr for row-major order. Dtype and data of `v` are
// known. A shape that no array can have, and elements with gaps between them or in one place, are refused.
void set_layout(View& v, const char* op, const Name& arg, std::int64_t ndim, const std::int64_t* shape,
                const std::int64_t* strides, std::int64_t unit);

void require_contiguous(const char* op, const Name& arg, bool ok);
void require_aligned(const char* op, const Name& arg, bool ok);

}  // namespace boost_ext
