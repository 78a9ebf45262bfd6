#include "ops/conv2d.h"

#include "cpu/convolution_products.h"
#include "cpu/winograd.h"

namespace boost_ext::cpu::BOOST_EXT_ISA {
namespace {

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

constexpr std::int64_t kPiece = 64 * kLanes;  // terms of a float32 sum, lane by lane
constexpr std::int64_t kCached = 65536;       // elements that stay in the second cache
constexpr std::int64_t kPart = 16;            // outputs of a group for which its images are copied once
constexpr int kTogether = 4;                  // outputs, which share what is loaded

// The same for many outputs, rows of weights.
void correlate_all(std::int64_t outputs, std::int64_t n, const float* source, const std::int64_t* offsets,
                   std::int64_t taps, const float* weights, float* out, std::int64_t stride) {
  std::int64_t o = 0;
  for (; o + kTogether <= outputs; o += kTogether) {
    correlate<kTogether, 1>(n, source, offsets, taps, weights + o * taps, out + o * stride, stride);
  }
  for (; o < outputs; ++o) { correlate<1, 4>(n, source, offsets, taps, weights + o * taps, out + o * stride, stride); }
}

// sums[b, k] <- sums[b, k] + sum over i < n of dy[b, i] x[offsets[k] + i], lane by lane, for B outputs and K taps.
template <int B, int K>
void dots(std::int64_t n, const float* dy, std::int64_t stride, const float* x, const std::int64_t* offsets,
          std::int64_t taps, double* sums) {
  for (std::int64_t begin = 0; begin < n; begin += kPiece) {
    const std::int64_t end = smaller(begin + kPiece, n);
    F pieces[B][K];
    _Pragma("GCC unroll 4") for (int b = 0; b < B; ++b) {
      _Pragma("GCC unroll 4") for (int k = 0; k < K; ++k) pieces[b][k] = F{};
    }
    for (std::int64_t i = begin; i < end; i += kLanes) {
      F d[B];
      _Pragma("GCC unroll 4") for (int b = 0; b < B; ++b) d[b] = load(dy + b * stride + i);
      _Pragma("GCC unroll 4") for (int k = 0; k < K; ++k) {
        const F from = load(x + offsets[k] + i);
        _Pragma("GCC unroll 4") for (int b = 0; b < B; ++b) pieces[b][k] = pieces[b][k] + d[b] * from;
      }
    }
    _Pragma("GCC unroll 4") for (int b = 0; b < B; ++b) {
      _Pragma("GCC unroll 4") for (int k = 0; k < K; ++k) {
        double* to = sums + (b * taps + k) * kLanes;
        store(to, load(to) + widen(pieces[b][k]));
      }
    }
  }
}

// The same for up to kTogether outputs and all taps.
void dots_of_all(std::int64_t outputs, std::int64_t n, const float* dy, std::int64_t stride, const float* x,
                 const std::int64_t* offsets, std::int64_t taps, double* sums) {
  if (outputs == kTogether) {
    for (std::int64_t t = 0; t < taps; ++t) {
      dots<kTogether, 1>(n, dy, stride, x, offsets + t, taps, sums + t * kLanes);
    }
    return;
  }
  for (std::int64_t o = 0; o < outputs; ++o) {
    for (std::int64_t t = 0; t < taps;) {  // in fours, but none alone
      const std::int64_t left = taps - t, k = left == 5 ? 3 : left < 4 ? left : 4;
      const auto sum_dots = k == 4 ? dots<1, 4> : k == 3 ? dots<1, 3> : k == 2 ? dots<1, 2> : dots<1, 1>;
      sum_dots(n, dy + o * stride, stride, x, offsets + t, taps, sums + (o * taps + t) * kLanes);
      t += k;
    }
  }
}

}  // namespace

void conv2d(const Context& context, const float* x, const float* w, const Convolution& of, float* y) {
  const Patches& p = of.p;
  if (of.in_tiles()) {
    const Layer layer{p.n, p.c, p.h, p.w, of.outputs, p.oh, p.ow, p.top, p.left};
    return put_convolution(context, x, w, false, layer, y);
  }
  if (of.in_products()) return ConvolutionProducts(context, of).put_outputs(x, w, y);
  const Planes planes(p);
  const std::int64_t channels = p.c / of.groups, outputs = of.outputs / of.groups, positions = p.oh * p.ow;
  if (positions == 0) return;
  const std::int64_t taps = channels * p.kh * p.kw, n = (p.oh - 1) * planes.pitch + p.ow, stride = up_to(kLanes, n);
  Scratch<std::int64_t> offsets(taps);
  Places places(p, planes, planes.size);
  for (std::int64_t t = 0; t < taps; ++t) offsets[t] = offset_of(p, planes, planes.size, t);
  on_threads(context.threads, p.n * of.outputs * positions * taps / 8, p.n * of.groups,
             [&](std::int64_t begin, std::int64_t end) {
               Zeros<float> source(channels * planes.count * planes.size + kLanes);
               Scratch<float> out(outputs * stride);
               for (std::int64_t i = begin; i < end; ++i) {
                 for (std::int64_t c = 0; c < channels; ++c) {
                   places.spread(x + (i * channels + c) * p.h * p.w, source.get() + c * planes.count * planes.size);
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
  if (of.in_tiles()) {  // an input sees the outputs that see it
    const Layer layer{p.n, of.outputs, p.oh, p.ow, p.c, p.h, p.w, 2 - p.top, 2 - p.left};
    return put_convolution(context, dy, w, true, layer, dx);
  }
  if (of.in_products()) return ConvolutionProducts(context, of).put_input_gradients(dy, w, dx);
  const Planes planes(p);
  const std::int64_t channels = p.c / of.groups, outputs = of.outputs / of.groups, positions = p.oh * p.ow;
  const std::int64_t window = p.kh * p.kw, taps = outputs * window;
  // Of each plane its taps, all outputs of the first tap, then of the second; and the weights in that order, for each
  // channel of a group.
  const std::int64_t margin = (p.kh - 1) * p.dh / p.sh * planes.pitch + (p.kw - 1) * p.dw / p.sw;
  const std::int64_t plane = margin + planes.size + kLanes, stride = up_to(kLanes, planes.size);
  Places places(p, planes, stride);
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
  on_threads(context.threads, p.n * p.c * planes.size * taps / 8, p.n * of.groups,
             [&](std::int64_t begin, std::int64_t end) {
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
                                 weights.get() + i % of.groups * channels * taps + channels * first[j],
                                 out.get() + j * stride, planes.count * stride);
                 }
                 for (std::int64_t c = 0; c < channels; ++c) {
                   places.gather(out.get() + c * planes.count * stride, dx + (i * channels + c) * p.h * p.w);
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
  if (of.in_tiles()) {
    const Layer layer{p.n, p.c, p.h, p.w, of.outputs, p.oh, p.ow, p.top, p.left};
    return put_weight_gradient(context, dy, x, layer, dw);
  }
  if (of.in_products()) return ConvolutionProducts(context, of).put_weight_gradients(dy, x, dw);
  // So many images in a row as one float32 sum takes, if their planes stay in the cache.
  const std::int64_t of_channel = planes.count * planes.size, fit = kCached / (channels * of_channel);
  const std::int64_t summed = kPiece / planes.size, most = 1 + smaller(fit, summed);
  const std::int64_t together = smaller(most, p.n), stride = together * of_channel;
  Scratch<std::int64_t> offsets(taps);
  Places places(p, planes, together * planes.size);
  for (std::int64_t t = 0; t < taps; ++t) offsets[t] = offset_of(p, planes, together * planes.size, t);
  const std::int64_t of_output = up_to(kLanes, together * planes.size + kLanes);
  const std::int64_t parts = quotient_up(outputs, kPart), largest = quotient_up(outputs, parts);
  on_threads(context.threads, p.n * of.outputs * positions * taps / 8, of.groups * parts,
             [&](std::int64_t begin, std::int64_t end) {
               Zeros<float> source(channels * stride + kLanes), grads(kTogether * of_output);
               Zeros<double> sums(largest * taps * kLanes);
               for (std::int64_t i = begin; i < end; ++i) {
                 const std::int64_t g = i / parts, part = i % parts;
                 const std::int64_t o = g * outputs + part * outputs / parts;
                 const std::int64_t count = g * outputs + (part + 1) * outputs / parts - o;
                 for (std::int64_t first = 0; first < p.n; first += together) {
                   const std::int64_t more = p.n - first, images = smaller(together, more);
                   for (std::int64_t m = 0; m < images; ++m) {
                     for (std::int64_t c = 0; c < channels; ++c) {
                       places.spread(x + (((first + m) * of.groups + g) * channels + c) * p.h * p.w,
                                     source.get() + c * stride + m * planes.size);
                     }
                   }
                   const std::int64_t n = (images - 1) * planes.size + (p.oh - 1) * planes.pitch + p.ow;
                   for (std::int64_t done = 0; done < count; done += kTogether) {
                     const std::int64_t here = smaller(count - done, kTogether);
                     for (std::int64_t b = 0; b < here; ++b) {
                       float* to = grads.get() + b * of_output;
                       for (std::int64_t m = 0; m < images; ++m) {
                         const float* from = dy + ((first + m) * of.outputs + o + done + b) * positions;
                         for (std::int64_t row = 0; row < p.oh; ++row) {
                           copy_row(from + row * p.ow, p.ow, to + m * planes.size + row * planes.pitch);
                         }
                       }
                       // What the last load reads beyond the last image may be of images before.
                       for (std::int64_t k = 0; k < kLanes; ++k) to[images * planes.size + k] = 0;
                     }
                     dots_of_all(here, n, grads.get(), of_output, source.get(), offsets.get(), taps,
                                 sums.get() + done * taps * kLanes);
                   }
                 }
                 for (std::int64_t t = 0; t < count * taps; ++t) {
                   double* of_one = sums.get() + t * kLanes;
                   dw[o * taps + t] = static_cast<float>(sum(load(of_one)));
                   store(of_one, D{});
                 }
               }
             });
}

}  // namespace boost_ext::cpu::BOOST_EXT_ISA
