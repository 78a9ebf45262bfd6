#include "ops/clip_by_global_norm.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "ops/global_norm.h"
#include "ops/unscale_and_check.h"

namespace boost_ext {

void clip_by_global_norm(const Context& context, const Views& grads, double clip_norm, const Number& scale,
                         const View& out) {
  const Device device = check(kClipByGlobalNorm, grads, clip_norm, scale, out);
  auto* norm = static_cast<double*>(out.data);
  if (device == Device::cuda) {
    const Views distinct = without_repeats(grads, first_occurrence(grads));
    return BOOST_EXT_CUDA(clip_by_global_norm)(context, grads, distinct, clip_norm, scale, norm);
  }
  *norm = norm_of(context, grads) / scale.value;
  if (std::isfinite(*norm) && *norm > clip_norm) {
    unscale_and_find(context, grads, std::max(clip_norm / *norm, kLeastSubnormal));
  }
}

void check_and_clip(const Context& context, double scale, double clip_norm, double own_scale, const View& report,
                    const View& norm, const View& divisor, const Views& grads, const View& found) {
  check(kCheckAndClip, scale, clip_norm, own_scale, report, norm, divisor, grads, found);
  const std::vector<double> squares = check_and_square(context, grads, 1 / scale, report, found);
  const double length = std::sqrt(std::accumulate(squares.begin(), squares.end(), 0.0)) / scale / own_scale;
  *static_cast<float*>(norm.data) = static_cast<float>(length);
  const bool bad = *static_cast<const float*>(found.data) != 0;
  *static_cast<float*>(divisor.data) = static_cast<float>(scale * (bad ? 1 : std::max(length / clip_norm, 1.0)));
}

}  // namespace boost_ext
