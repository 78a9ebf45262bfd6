// Convolutions of many channels as products of matrices (scatter_product.h): weights times what each output position
// sees, weights times gradients, gradients times what is seen. No matrix of patches is made: its elements are found in
// the images, or in planes with zeros around them where positions see beyond an image.
#pragma once

#include "cpu/image_planes.h"
#include "cpu/scatter_product.h"
#include "ops/conv2d.h"

namespace boost_ext::cpu::BOOST_EXT_ISA {

class ConvolutionProducts {
 public:
  ConvolutionProducts(const Context& context, const Convolution& of)
      : threads_(context.threads),
        narrow_(context.narrow_products),
        p_(of.p),
        groups_(of.groups),
        channels_(of.p.c / of.groups),
        outputs_(of.outputs / of.groups),
        pixels_(of.p.h * of.p.w),
        positions_(of.p.oh * of.p.ow),
        window_(of.p.kh * of.p.kw),
        of_group_(outputs_ * positions_),
        of_image_(groups_ * of_group_),
        planes_(of.p),
        sees_pixels_(window_ == 1 && p_.top == 0 && p_.left == 0 && (p_.oh - 1) * p_.sh < p_.h &&
                     (p_.ow - 1) * p_.sw < p_.w) {}

  void put_outputs(const float* x, const float* w, float* y) {
    const std::int64_t taps = channels_ * window_;
    const Axis rows(outputs_, taps), weights(taps, 1), out_rows(outputs_, positions_);
    each_part(x, [&](const Seen& seen, std::int64_t first, std::int64_t images) {
      const Axis columns = of_positions(images, of_image_, p_.ow, 1);
      multiply_scattered(threads_, groups_, {w, outputs_ * taps, rows, weights},
                         {seen.data, channels_ * seen.channel, seen.taps, seen.positions},
                         {y + first * of_image_, of_group_, out_rows, columns}, narrow_);
    });
  }

  void put_weight_gradients(const float* dy, const float* x, float* dw) {
    const std::int64_t taps = channels_ * window_;
    const Axis rows(outputs_, positions_), out_rows(outputs_, taps), out_columns(taps, 1);
    each_part(x, [&](const Seen& seen, std::int64_t first, std::int64_t images) {
      const Axis columns = of_positions(images, of_image_, p_.ow, 1);
      multiply_scattered(threads_, groups_, {dy + first * of_image_, of_group_, rows, columns},
                         {seen.data, channels_ * seen.channel, seen.positions, seen.taps, true},
                         {dw, outputs_ * taps, out_rows, out_columns, first > 0}, narrow_);
    });
  }

  void put_input_gradients(const float* dy, const float* w, float* dx) {
    if (!sees_pixels_) return put_input_gradients_by_planes(dy, w, dx);
    if (positions_ < pixels_) fill_zeros(dx);
    const Axis rows(channels_, 1), weights(outputs_, channels_), taken(outputs_, positions_);
    const Axis out_rows(channels_, pixels_), columns = of_positions(p_.n, of_image_, p_.ow, 1);
    const Axis pixels = of_positions(p_.n, p_.c * pixels_, p_.sh * p_.w, p_.sw);
    multiply_scattered(threads_, groups_, {w, outputs_ * channels_, rows, weights, true},
                       {dy, of_group_, taken, columns}, {dx, channels_ * pixels_, out_rows, pixels}, narrow_);
  }

 private:
  // Of some images: where weights find their elements, added to where positions do.
  struct Seen {
    const float* data;
    const Axis &taps, &positions;
    std::int64_t channel;  // from one to the next
  };

  // Of the output positions of all images.
  Axis of_positions(std::int64_t images, std::int64_t image, std::int64_t row, std::int64_t column) const {
    Axis axis(images * positions_);
    for (std::int64_t n = 0; n < images; ++n) {
      for (std::int64_t y = 0; y < p_.oh; ++y) {
        for (std::int64_t x = 0; x < p_.ow; ++x) axis.add(n * image + y * row + x * column);
      }
    }
    return axis;
  }

  void fill_zeros(float* dx) const {
    on_threads(threads_, p_.n * p_.c * pixels_, p_.n * p_.c, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin * pixels_; i < end * pixels_; ++i) dx[i] = 0;
    });
  }

  // So many images at a time that their planes of `size` take no more memory than this.
  std::int64_t part(std::int64_t size) const {
    constexpr std::int64_t kNumbers = 1 << 22;
    const std::int64_t fit = kNumbers / (size > 0 ? size : 1), most = fit > 1 ? fit : 1;
    return smaller(p_.n, most);
  }

  template <class Body> void each_part(const float* x, Body body) {
    if (sees_pixels_) {
      const Axis taps(channels_, pixels_), seen = of_positions(p_.n, p_.c * pixels_, p_.sh * p_.w, p_.sw);
      return body(Seen{x, taps, seen, pixels_}, std::int64_t{0}, p_.n);
    }
    const std::int64_t channel = planes_.count * planes_.size, most = part(p_.c * channel);
    Scratch<float> memory(most * p_.c * channel);
    Places places(p_, planes_, planes_.size);
    Axis taps(channels_ * window_);
    for (std::int64_t t = 0; t < channels_ * window_; ++t) taps.add(offset_of(p_, planes_, planes_.size, t));
    for (std::int64_t first = 0; first < p_.n; first += most) {
      const std::int64_t images = smaller(most, p_.n - first);
      on_threads(threads_, 2 * images * p_.c * channel, images * p_.c, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
          float* const to = memory.get() + i * channel;
          for (std::int64_t k = 0; k < channel; ++k) to[k] = 0;
          places.spread(x + (first * p_.c + i) * pixels_, to);
        }
      });
      const Axis seen = of_positions(images, p_.c * channel, planes_.pitch, 1);
      body(Seen{memory.get(), taps, seen, channel}, first, images);
    }
  }

  // A weight that a position finds `offset` further on gives its gradient there: of the pixels of one plane, each sees
  // the same weights.
  void put_input_gradients_by_planes(const float* dy, const float* w, float* dx) {
    const std::int64_t margin = (p_.kh - 1) * p_.dh / p_.sh * planes_.pitch + (p_.kw - 1) * p_.dw / p_.sw;
    const std::int64_t plane = margin + planes_.size, all = groups_ * outputs_, most = part(all * plane);
    Scratch<float> memory(most * all * plane), weights(channels_ * groups_ * outputs_ * window_);
    Scratch<std::int64_t> taps(window_), first_tap(planes_.count + 1);  // by their planes
    std::int64_t found = 0;
    for (std::int64_t j = 0; j < planes_.count; ++j) {
      first_tap[j] = found;
      for (std::int64_t t = 0; t < window_; ++t) {
        if (Tap(p_, planes_, t).plane == j) taps[found++] = t;
      }
    }
    first_tap[planes_.count] = found;
    // Of each channel all outputs of the first tap, then of the second.
    on_threads(threads_, 2 * p_.c * outputs_ * window_, p_.c, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t c = begin; c < end; ++c) {
        float* to = weights.get() + c * window_ * outputs_;
        for (std::int64_t k = 0; k < window_; ++k) {
          const float* const from = w + (c / channels_ * outputs_ * channels_ + c % channels_) * window_ + taps[k];
          for (std::int64_t o = 0; o < outputs_; ++o) *to++ = from[o * channels_ * window_];
        }
      }
    });
    fill_zeros(dx);
    for (std::int64_t first = 0; first < p_.n; first += most) {
      const std::int64_t images = smaller(most, p_.n - first);
      on_threads(threads_, 2 * images * all * plane, images * all, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
          float* const to = memory.get() + i * plane;
          for (std::int64_t k = 0; k < plane; ++k) to[k] = 0;
          for (std::int64_t row = 0; row < p_.oh; ++row) {
            copy_row(dy + (first * all + i) * positions_ + row * p_.ow, p_.ow, to + margin + row * planes_.pitch);
          }
        }
      });
      for (std::int64_t j = 0; j < planes_.count; ++j) {
        put_plane(memory.get(), plane, margin, images, j, taps.get() + first_tap[j], first_tap[j + 1] - first_tap[j],
                  weights.get() + first_tap[j] * outputs_, dx + first * p_.c * pixels_);
      }
    }
  }

  // The gradients of the pixels of plane j, which see these taps.
  void put_plane(const float* source, std::int64_t plane, std::int64_t margin, std::int64_t images, std::int64_t j,
                 const std::int64_t* taps, std::int64_t count, const float* weights, float* dx) const {
    if (count == 0) return;
    const std::int64_t most = quotient_up(p_.h, p_.sh) * quotient_up(p_.w, p_.sw) * images;
    Axis seen(most), pixels(most), taken(count * outputs_);
    for (std::int64_t n = 0; n < images; ++n) {
      for (std::int64_t y = 0; y < p_.h; ++y) {
        const std::int64_t row = (y + p_.top) / p_.sh;
        if ((y + p_.top) % p_.sh != j / p_.sw || row >= planes_.rows) continue;
        for (std::int64_t x = 0; x < p_.w; ++x) {
          const std::int64_t column = (x + p_.left) / p_.sw;
          if ((x + p_.left) % p_.sw != j % p_.sw || column >= planes_.pitch) continue;
          seen.add(n * groups_ * outputs_ * plane + row * planes_.pitch + column);
          pixels.add(n * p_.c * pixels_ + y * p_.w + x);
        }
      }
    }
    for (std::int64_t k = 0; k < count * outputs_; ++k) {
      taken.add(k % outputs_ * plane + margin - Tap(p_, planes_, taps[k / outputs_]).offset);
    }
    const Axis rows(channels_, window_ * outputs_), of_taps(count * outputs_, 1), out_rows(channels_, pixels_);
    multiply_scattered(threads_, groups_, {weights, channels_ * window_ * outputs_, rows, of_taps},
                       {source, outputs_ * plane, taken, seen}, {dx, channels_ * pixels_, out_rows, pixels}, narrow_);
  }

  const int threads_;
  const bool narrow_;
  const Patches p_;
  const std::int64_t groups_, channels_, outputs_, pixels_, positions_, window_;
  const std::int64_t of_group_, of_image_;  // outputs
  const Planes planes_;
  const bool sees_pixels_;
};

}  // namespace boost_ext::cpu::BOOST_EXT_ISA
