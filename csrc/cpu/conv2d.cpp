#include "ops/conv2d.h"

#include "cpu/parallel.h"
#include "cpu/simd.h"

namespace boost_ext::cpu::BOOST_EXT_ISA {
namespace {

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

// Where the elements begin that each weight of an output meets, in all channels of a group, with `stride` from one
// plane to the next.
void set_offsets(const Patches& p, const Planes& planes, std::int64_t stride, std::int64_t taps,
                 std::int64_t* offsets) {
  const std::int64_t window = p.kh * p.kw;
  for (std::int64_t t = 0; t < taps; ++t) {
    const Tap tap(p, planes, t % window);
    offsets[t] = (t / window * planes.count + tap.plane) * stride + tap.offset;
  }
}

std::int64_t up_to_lanes(std::int64_t n) { return (n + kLanes - 1) / kLanes * kLanes; }

template <class T> class Zeros : public Scratch<T> {
 public:
  explicit Zeros(std::int64_t n) : Scratch<T>(n) {
    for (std::int64_t i = 0; i < n; ++i) (*this)[i] = 0;
  }
};

BOOST_EXT_INLINE void copy_row(const float* from, std::int64_t n, float* to) {
  std::int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) *reinterpret_cast<UnalignedVf*>(to + i) = load_floats(from + i);
  for (; i + 4 <= n; i += 4) std::memcpy(to + i, from + i, 16);
  for (; i < n; ++i) to[i] = from[i];
}

// fn(row of the image, its column, its plane, where in it, elements): each run of elements of an image that lie in one
// row of a plane, `sw` columns apart in the image.
template <class Fn> BOOST_EXT_INLINE void each_run(const Patches& p, const Planes& planes, Fn fn) {
  for (std::int64_t y = 0; y < p.h; ++y) {
    const std::int64_t row = (y + p.top) / p.sh;
    if (row >= planes.rows) break;
    for (std::int64_t b = 0; b < p.sw; ++b) {
      const std::int64_t before = p.left > b ? (p.left - b + p.sw - 1) / p.sw : 0;  // columns of padding in the plane
      const std::int64_t x = before * p.sw + b - p.left;
      if (x >= p.w) continue;
      const std::int64_t all = (p.w - x + p.sw - 1) / p.sw, fit = planes.pitch - before;
      if (fit <= 0) continue;
      fn(y, x, (y + p.top) % p.sh * p.sw + b, row * planes.pitch + before, all < fit ? all : fit);
    }
  }
}

// One channel of an image, into its planes, `stride` apart.
BOOST_EXT_INLINE void spread(const Patches& p, const Planes& planes, const float* image, std::int64_t stride,
                             float* to) {
  each_run(p, planes, [&](std::int64_t y, std::int64_t x, std::int64_t plane, std::int64_t at, std::int64_t n) {
    const float* from = image + y * p.w + x;
    float* run = to + plane * stride + at;
    if (p.sw == 1) return copy_row(from, n, run);
    for (std::int64_t i = 0; i < n; ++i) run[i] = from[i * p.sw];
  });
}

// And back; zeros for what no output sees.
BOOST_EXT_INLINE void gather(const Patches& p, const Planes& planes, const float* from, std::int64_t stride,
                             float* image) {
  if (planes.rows * p.sh - p.top < p.h || planes.pitch * p.sw - p.left < p.w) {
    for (std::int64_t i = 0; i < p.h * p.w; ++i) image[i] = 0;
  }
  each_run(p, planes, [&](std::int64_t y, std::int64_t x, std::int64_t plane, std::int64_t at, std::int64_t n) {
    float* to = image + y * p.w + x;
    const float* run = from + plane * stride + at;
    if (p.sw == 1) return copy_row(run, n, to);
    for (std::int64_t i = 0; i < n; ++i) to[i * p.sw] = run[i];
  });
}

// The sums of taps for B outputs and U times sixteen places.
template <int B, int U>
BOOST_EXT_INLINE void correlate(const float* source, const std::int64_t* offsets, std::int64_t taps,
                                const float* weights, float* out, std::int64_t stride) {
  F sums[B][U] = {};
  for (std::int64_t t = 0; t < taps; ++t) {
    const float* from = source + offsets[t];
    F x[U];
    _Pragma("GCC unroll 4") for (int u = 0; u < U; ++u) x[u] = load(from + u * kLanes);
    for (int b = 0; b < B; ++b) {
      const float w = weights[b * taps + t];
      _Pragma("GCC unroll 4") for (int u = 0; u < U; ++u) sums[b][u] = sums[b][u] + w * x[u];
    }
  }
  for (int b = 0; b < B; ++b) {
    _Pragma("GCC unroll 4") for (int u = 0; u < U; ++u) store(out + b * stride + u * kLanes, sums[b][u]);
  }
}

// out[b, i] <- sum over t of weights[b, t] source[offsets[t] + i], for i < n and up to fifteen more.
template <int B, int U>
void correlate(std::int64_t n, const float* source, const std::int64_t* offsets, std::int64_t taps,
               const float* weights, float* out, std::int64_t stride) {
  std::int64_t i = 0;
  for (; i + (U - 1) * kLanes < n; i += U * kLanes) {
    correlate<B, U>(source + i, offsets, taps, weights, out + i, stride);
  }
  for (; i < n; i += kLanes) correlate<B, 1>(source + i, offsets, taps, weights, out + i, stride);
}

constexpr std::int64_t kImages = 4096;  // elements of images that are multiplied at once
constexpr int kTogether = 4;            // outputs, which share what is loaded

// The same for many outputs, rows of weights.
void correlate_all(std::int64_t outputs, std::int64_t n, const float* source, const std::int64_t* offsets,
                   std::int64_t taps, const float* weights, float* out, std::int64_t stride) {
  std::int64_t o = 0;
  for (; o + kTogether <= outputs; o += kTogether) {
    correlate<kTogether, 1>(n, source, offsets, taps, weights + o * taps, out + o * stride, stride);
  }
  for (; o < outputs; ++o) { correlate<1, 4>(n, source, offsets, taps, weights + o * taps, out + o * stride, stride); }
}

// sums[k] <- sums[k] + sum over i < n of dy[i] x[offsets[k] + i], lane by lane.
template <int K> void dots(std::int64_t n, const float* dy, const float* x, const std::int64_t* offsets, double* sums) {
  constexpr std::int64_t kPiece = 64 * kLanes;
  for (std::int64_t begin = 0; begin < n; begin += kPiece) {
    const std::int64_t end = begin + kPiece < n ? begin + kPiece : n;
    F pieces[K] = {};
    for (std::int64_t i = begin; i < end; i += kLanes) {
      const F d = load(dy + i);
      for (int k = 0; k < K; ++k) pieces[k] = pieces[k] + d * load(x + offsets[k] + i);
    }
    for (int k = 0; k < K; ++k) store(sums + k * kLanes, load(sums + k * kLanes) + widen(pieces[k]));
  }
}

}  // namespace

void conv2d(const Context& context, const float* x, const float* w, const Convolution& of, float* y) {
  const Patches& p = of.p;
  const Planes planes(p);
  const std::int64_t channels = p.c / of.groups, outputs = of.outputs / of.groups, positions = p.oh * p.ow;
  if (positions == 0) return;
  const std::int64_t taps = channels * p.kh * p.kw, n = (p.oh - 1) * planes.pitch + p.ow, stride = up_to_lanes(n);
  Scratch<std::int64_t> offsets(taps);
  set_offsets(p, planes, planes.size, taps, offsets.get());
  on_threads(context.threads, p.n * of.outputs * positions * taps / 8, p.n * of.groups,
             [&](std::int64_t begin, std::int64_t end) {
               Zeros<float> source(channels * planes.count * planes.size + kLanes);
               Scratch<float> out(outputs * stride);
               for (std::int64_t i = begin; i < end; ++i) {
                 for (std::int64_t c = 0; c < channels; ++c) {
                   spread(p, planes, x + (i * channels + c) * p.h * p.w, planes.size,
                          source.get() + c * planes.count * planes.size);
                 }
                 correlate_all(outputs, n, source.get(), offsets.get(), taps, w + i % of.groups * outputs * taps,
                               out.get(), stride);
                 for (std::int64_t o = 0; o < outputs; ++o) {
                   for (std::int64_t row = 0; row < p.oh; ++row) {
                     copy_row(out.get() + o * stride + row * planes.pitch, p.ow,
                              y + (i * outputs + o) * positions + row * p.ow);
                   }
                 }
               }
             });
}

// The outputs' planes are moved the other way: a weight that met the element `offset` further on gives its gradient
// there.
void conv2d_input_gradient(const Context& context, const float* dy, const float* w, const Convolution& of, float* dx) {
  const Patches& p = of.p;
  const Planes planes(p);
  const std::int64_t channels = p.c / of.groups, outputs = of.outputs / of.groups, positions = p.oh * p.ow;
  const std::int64_t window = p.kh * p.kw, taps = outputs * window;
  // Of each plane its taps, all outputs of the first tap, then of the second; and the weights in that order, for each
  // channel of a group.
  const std::int64_t margin = (p.kh - 1) * p.dh / p.sh * planes.pitch + (p.kw - 1) * p.dw / p.sw;
  const std::int64_t plane = margin + planes.size + kLanes, stride = up_to_lanes(planes.size);
  Scratch<std::int64_t> offsets(taps), first(planes.count + 1);
  Scratch<float> weights(of.groups * channels * taps);
  std::int64_t at = 0;
  for (std::int64_t j = 0; j < planes.count; ++j) {
    first[j] = at;
    for (std::int64_t t = 0; t < window; ++t) {
      const Tap tap(p, planes, t);
      if (tap.plane != j) continue;
      for (std::int64_t o = 0; o < outputs; ++o) offsets[at++] = o * plane + margin - tap.offset;
    }
  }
  first[planes.count] = at;
  for (std::int64_t j = 0; j < planes.count; ++j) {
    const std::int64_t here = first[j + 1] - first[j];
    std::int64_t seen = 0;
    for (std::int64_t t = 0; t < window; ++t) {
      if (Tap(p, planes, t).plane != j) continue;
      for (std::int64_t g = 0; g < of.groups; ++g) {
        for (std::int64_t c = 0; c < channels; ++c) {
          float* row = weights.get() + g * channels * taps + channels * first[j] + c * here + seen;
          for (std::int64_t o = 0; o < outputs; ++o) row[o] = w[((g * outputs + o) * channels + c) * window + t];
        }
      }
      seen += outputs;
    }
  }
  on_threads(
      context.threads, p.n * p.c * planes.size * taps / 8, p.n * of.groups, [&](std::int64_t begin, std::int64_t end) {
        Zeros<float> source(outputs * plane);
        Zeros<float> out(channels * planes.count * stride);
        for (std::int64_t i = begin; i < end; ++i) {
          for (std::int64_t o = 0; o < outputs; ++o) {
            for (std::int64_t row = 0; row < p.oh; ++row) {
              copy_row(dy + (i * outputs + o) * positions + row * p.ow, p.ow,
                       source.get() + o * plane + margin + row * planes.pitch);
            }
          }
          for (std::int64_t j = 0; j < planes.count; ++j) {
            if (first[j] == first[j + 1]) continue;
            correlate_all(channels, planes.size, source.get(), offsets.get() + first[j], first[j + 1] - first[j],
                          weights.get() + i % of.groups * channels * taps + channels * first[j], out.get() + j * stride,
                          planes.count * stride);
          }
          for (std::int64_t c = 0; c < channels; ++c) {
            gather(p, planes, out.get() + c * planes.count * stride, stride, dx + (i * channels + c) * p.h * p.w);
          }
        }
      });
}

void conv2d_weight_gradient(const Context& context, const float* dy, const float* x, const Convolution& of, float* dw) {
  const Patches& p = of.p;
  const Planes planes(p);
  const std::int64_t channels = p.c / of.groups, outputs = of.outputs / of.groups, positions = p.oh * p.ow;
  const std::int64_t taps = channels * p.kh * p.kw;
  if (p.n * positions == 0) {
    for (std::int64_t i = 0; i < of.outputs * taps; ++i) dw[i] = 0;
    return;
  }
  // So many images in a row that their planes stay in the first cache.
  const std::int64_t of_channel = planes.count * planes.size, most = 1 + kImages / (channels * of_channel);
  const std::int64_t together = most < p.n ? most : p.n, stride = together * of_channel;
  Scratch<std::int64_t> offsets(taps);
  set_offsets(p, planes, together * planes.size, taps, offsets.get());
  on_threads(context.threads, p.n * of.outputs * positions * taps / 8, of.outputs,
             [&](std::int64_t begin, std::int64_t end) {
               Zeros<float> source(channels * stride + kLanes);
               Zeros<float> grads(together * planes.size + kLanes);
               Zeros<double> sums((end - begin) * taps * kLanes);
               for (std::int64_t g = begin / outputs; g * outputs < end; ++g) {
                 for (std::int64_t first = 0; first < p.n; first += together) {
                   const std::int64_t more = p.n - first, images = together < more ? together : more;
                   // What the last load reads beyond the last image may be of images before.
                   for (std::int64_t i = 0; i < kLanes; ++i) grads[images * planes.size + i] = 0;
                   for (std::int64_t m = 0; m < images; ++m) {
                     for (std::int64_t c = 0; c < channels; ++c) {
                       spread(p, planes, x + (((first + m) * of.groups + g) * channels + c) * p.h * p.w,
                              together * planes.size, source.get() + c * stride + m * planes.size);
                     }
                   }
                   for (std::int64_t o = g * outputs; o < (g + 1) * outputs; ++o) {
                     if (o < begin || o >= end) continue;
                     for (std::int64_t m = 0; m < images; ++m) {
                       const float* from = dy + ((first + m) * of.outputs + o) * positions;
                       for (std::int64_t row = 0; row < p.oh; ++row) {
                         copy_row(from + row * p.ow, p.ow, grads.get() + m * planes.size + row * planes.pitch);
                       }
                     }
                     const std::int64_t n = (images - 1) * planes.size + (p.oh - 1) * planes.pitch + p.ow;
                     double* to = sums.get() + (o - begin) * taps * kLanes;
                     for (std::int64_t t = 0; t < taps;) {  // in fours, but none alone
                       const std::int64_t left = taps - t, k = left == 5 ? 3 : left < 4 ? left : 4;
                       const auto sum_dots = k == 4 ? dots<4> : k == 3 ? dots<3> : k == 2 ? dots<2> : dots<1>;
                       sum_dots(n, grads.get(), source.get(), offsets.get() + t, to + t * kLanes);
                       t += k;
                     }
                   }
                 }
               }
               for (std::int64_t t = 0; t < (end - begin) * taps; ++t) {
                 dw[begin * taps + t] = static_cast<float>(sum(load(sums.get() + t * kLanes)));
               }
             });
}

}  // namespace boost_ext::cpu::BOOST_EXT_ISA
