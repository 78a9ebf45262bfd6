#include "ops/adaptive_clip.h"

#include <cstring>

namespace boost_ext {

void adaptive_clip(const Context& context, const Views& grads, const Views& weights, double clipping, double eps,
                   double scale) {
  const Device device = check(kAdaptiveClip, grads, weights, clipping, eps, scale);
  Views written, read;
  for (std::size_t i = 0; i < grads.size(); ++i) {
    const View &g = grads[i], &w = weights[i];
    require(g.ndim == w.ndim && g.rows == w.rows, kAdaptiveClip.op, ": grads[", i, "] must have the shape of weights[",
            i, "], got another one");
    if (g.size == 0) continue;
    written.push_back(g);
    read.push_back(w);
    if (g.ndim < 2) written.back().rows = 1;
  }
  const UnitLimits limits{clipping * scale, eps};
  if (device == Device::cuda) return BOOST_EXT_CUDA(adaptive_clip)(context, written, read, limits);
  if (!written.empty()) BOOST_EXT_CPU(adaptive_clip)(context, written, read, limits);
}

void adaptive_clipped(const Context& context, const Views& grads, const Views& weights, double clipping, double eps,
                      double scale, const Views& out) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    require(out[i].bytes() == grads[i].bytes(), kAdaptiveClipped.op, ": out[", i, "] must have ", grads[i].bytes(),
            " bytes, got ", out[i].bytes());
    if (out[i].size > 0) std::memcpy(out[i].data, grads[i].data, static_cast<std::size_t>(out[i].bytes()));
  }
  adaptive_clip(context, out, weights, clipping, eps, scale);
}

}  // namespace boost_ext
