// max_pool and its gradient: the largest element of each window of a plane.
//
//   y[p, r, c]      <- max over i < kh, j < kw of x[p, r sh - top + i, c sw - left + j], as far as these exist
//   places[p, r, c] <- i kw + j of that element: of the first among equals, or of the last nan
//   dx              <- 0, then dx[p, r sh - top + i, c sw - left + j] += dy[p, r, c] in the order of dy,
//                      i and j those of places[p, r, c]
//
// x, dx     float32 (..., h, w)
// windows   int32 (6,): kh, kw, sh, sw, top, left; kh, kw, sh, sw > 0, kh kw <= 256, 0 <= top < kh, 0 <= left < kw
// y, dy     float32 (..., oh, ow) with windows that all hold an element of the plane
// places    uint8 like y
// The gradient takes places as max_pool wrote them; others have it write anywhere. It reads a byte for an output and
// neither x nor y, which nobody keeps for it then.
#pragma once

#include "ops/runtime.h"
#include "ops/schema.h"

namespace boost_ext {

inline constexpr Arg kMaxPoolArgs[] = {array("x", kF32), integers("windows"), array("y", kF32).written(),
                                       array("places", only(DType::u8)).like("y").written()};
inline constexpr Schema kMaxPool{"max_pool", kMaxPoolArgs, Devices::cpu};

inline constexpr Arg kMaxPoolGradientArgs[] = {array("dy", kF32), array("places", only(DType::u8)).like("dy"),
                                               integers("windows"), array("dx", kF32).written()};
inline constexpr Schema kMaxPoolGradient{"max_pool_gradient", kMaxPoolGradientArgs, Devices::cpu};

// Planes, their size, that of the result; windows, their distances, and how far the first ones stand out.
struct Pooling {
  std::int64_t planes, h, w, oh, ow, kh, kw, sh, sw, top, left;
};

void max_pool(const Context& context, const View& x, const std::vector<std::int32_t>& windows, const View& y,
              const View& places);
void max_pool_gradient(const Context& context, const View& dy, const View& places,
                       const std::vector<std::int32_t>& windows, const View& dx);

BOOST_EXT_CPU_KERNEL(void, max_pool, const Context&, const Pooling& pooling, const float* x, float* y,
                     std::uint8_t* places)
BOOST_EXT_CPU_KERNEL(void, max_pool_gradient, const Context&, const Pooling& pooling, const float* dy,
                     const std::uint8_t* places, float* dx)

}  // namespace boost_ext
