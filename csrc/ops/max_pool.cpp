#include "ops/max_pool.h"

namespace boost_ext {
namespace {

constexpr std::int64_t kPlaces = 256;  // in a byte

Pooling pooling_of(const char* op, const View& plane, const char* pooled_name, const View& pooled,
                   const std::vector<std::int32_t>& windows) {
  require(windows.size() == 6, op, ": windows must have 6 elements, got ", windows.size());
  const std::int64_t kh = windows[0], kw = windows[1], sh = windows[2], sw = windows[3];
  const std::int64_t top = windows[4], left = windows[5];
  require(kh > 0 && kw > 0 && sh > 0 && sw > 0, op, ": windows and their distances must be positive, got ", kh, " x ",
          kw, " and ", sh, " x ", sw);
  require(kh <= kPlaces && kw <= kPlaces && kh * kw <= kPlaces, op, ": windows must have at most ", kPlaces,
          " elements, got ", kh, " x ", kw);
  require(top >= 0 && left >= 0 && top < kh && left < kw, op, ": padding must be less than the window, got ", top,
          " x ", left);
  const std::int64_t h = plane.height, w = plane.width, oh = pooled.height, ow = pooled.width;
  require(plane.ndim > 1 && pooled.ndim == plane.ndim, op, ": planes and ", pooled_name,
          " must have as many axes, two or more, got ", plane.ndim, " and ", pooled.ndim);
  const std::int64_t planes = h * w > 0 ? plane.size / (h * w) : 0;
  require_size(op, pooled_name, pooled, planes * oh * ow);
  require(pooled.size == 0 || ((oh - 1) * sh - top < h && (ow - 1) * sw - left < w), op, ": each of the ", oh, " x ",
          ow, " windows must hold an element of the ", h, " x ", w);
  return {planes, h, w, oh, ow, kh, kw, sh, sw, top, left};
}

}  // namespace

void max_pool(const Context& context, const View& x, const std::vector<std::int32_t>& windows, const View& y,
              const View& places) {
  check(kMaxPool, x, windows, y, places);
  const Pooling pooling = pooling_of(kMaxPool.op, x, "y", y, windows);
  if (y.size == 0) return;
  BOOST_EXT_CPU(max_pool)
  (context, pooling, static_cast<const float*>(x.data), static_cast<float*>(y.data),
   static_cast<std::uint8_t*>(places.data));
}

void max_pool_gradient(const Context& context, const View& dy, const View& places,
                       const std::vector<std::int32_t>& windows, const View& dx) {
  check(kMaxPoolGradient, dy, places, windows, dx);
  const Pooling pooling = pooling_of(kMaxPoolGradient.op, dx, "dy", dy, windows);
  BOOST_EXT_CPU(max_pool_gradient)
  (context, pooling, static_cast<const float*>(dy.data), static_cast<const std::uint8_t*>(places.data),
   static_cast<float*>(dx.data));
}

}  // namespace boost_ext
