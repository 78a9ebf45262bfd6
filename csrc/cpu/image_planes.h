// Images as a convolution sees them.
#pragma once

#include "cpu/image_rows.h"
#include "ops/patches.h"

namespace boost_ext::cpu::BOOST_EXT_ISA {

// An image is copied into planes with zeros around it, one for each remainder of a row and of a column by the stride:
// there the elements that one weight meets lie as the outputs do. So a convolution becomes a sum of whole planes, each
// moved and times a weight, whose rows need not be told apart: what comes of the end of one row and the start of the
// next is left out of y, and meets zeros in the gradients.
struct Planes {
  explicit Planes(const Patches& p)
      : pitch(p.ow + (p.kw - 1) * p.dw / p.sw),
        rows(p.oh + (p.kh - 1) * p.dh / p.sh),
        size(rows * pitch),
        count(p.sh * p.sw) {}

  std::int64_t pitch, rows, size;  // of a plane
  std::int64_t count;              // planes of a channel
};

// Where a weight's elements begin: in which plane, and how far from its beginning.
struct Tap {
  std::int64_t plane, offset;
  Tap(const Patches& p, const Planes& planes, std::int64_t tap) {
    const std::int64_t row = tap / p.kw * p.dh, column = tap % p.kw * p.dw;
    plane = row % p.sh * p.sw + column % p.sw;
    offset = row / p.sh * planes.pitch + column / p.sw;
  }
};

// Where the elements begin that weight t of an output meets, in all channels of a group, with `stride` from one plane
// to the next.
inline std::int64_t offset_of(const Patches& p, const Planes& planes, std::int64_t stride, std::int64_t t) {
  const std::int64_t window = p.kh * p.kw;
  const Tap tap(p, planes, t % window);
  return (t / window * planes.count + tap.plane) * stride + tap.offset;
}

// Where the elements of an image lie in its planes, `stride` apart: in runs of one row of a plane each, found once,
// since a division takes as long as a short run.
class Places {
 public:
  Places(const Patches& p, const Planes& planes, std::int64_t stride)
      : runs_(p.h * p.sw),
        size_(p.h * p.w),
        step_(p.sw),
        all_are_seen_(planes.rows * p.sh - p.top >= p.h && planes.pitch * p.sw - p.left >= p.w) {
    for (std::int64_t y = 0; y < p.h; ++y) {
      const std::int64_t row = (y + p.top) / p.sh;
      if (row >= planes.rows) break;
      for (std::int64_t b = 0; b < p.sw; ++b) {
        const std::int64_t before = p.left > b ? quotient_up(p.left - b, p.sw) : 0;  // columns of padding in the plane
        const std::int64_t x = before * p.sw + b - p.left, fit = planes.pitch - before;
        const std::int64_t all = quotient_up(p.w - x, p.sw);
        if (x >= p.w || fit <= 0) continue;
        const std::int64_t plane = (y + p.top) % p.sh * p.sw + b;
        runs_[count_++] = {y * p.w + x, plane * stride + row * planes.pitch + before, smaller(all, fit)};
      }
    }
  }

  void spread(const float* image, float* planes) {
    each_run([&](const Run& run) { copy(image + run.in_image, step_, planes + run.in_planes, 1, run.n); });
  }
  // And back; zeros for what no output sees.
  void gather(const float* planes, float* image) {
    for (std::int64_t i = 0; !all_are_seen_ && i < size_; ++i) image[i] = 0;
    each_run([&](const Run& run) { copy(planes + run.in_planes, 1, image + run.in_image, step_, run.n); });
  }

 private:
  struct Run {
    std::int64_t in_image, in_planes, n;
  };
  template <class Body> void each_run(Body body) {
    for (std::int64_t k = 0; k < count_; ++k) body(runs_[k]);
  }
  BOOST_EXT_INLINE static void copy(const float* from, std::int64_t step, float* to, std::int64_t to_step,
                                    std::int64_t n) {
    if (step == 1 && to_step == 1)
      copy_row(from, n, to);
    else
      for (std::int64_t i = 0; i < n; ++i) to[i * to_step] = from[i * step];
  }
  Scratch<Run> runs_;
  std::int64_t count_ = 0, size_, step_;
  bool all_are_seen_;
};

}  // namespace boost_ext::cpu::BOOST_EXT_ISA
