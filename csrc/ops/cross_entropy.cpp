#include "ops/cross_entropy.h"

namespace boost_ext {
namespace {

// How many rows count. std::invalid_argument for a label of no class.
std::int64_t counted(const char* op, const View& x, const View& labels, std::int64_t ignored) {
  require(x.ndim == 2 && x.width > 0, op, ": x must have two axes, the last of one class or more, got ", x.ndim,
          " axes and ", x.size, " elements");
  require_size(op, "labels", labels, x.rows);
  const auto* label = static_cast<const std::int32_t*>(labels.data);
  std::int64_t count = 0;
  for (std::int64_t r = 0; r < x.rows; ++r) {
    if (label[r] == ignored) continue;
    require(label[r] >= 0 && label[r] < x.width, op, ": labels must be in 0..", x.width - 1, ", got ", label[r],
            " in row ", r);
    ++count;
  }
  return count;
}

}  // namespace

void cross_entropy(const Context& context, const View& x, const View& labels, std::int64_t ignored, bool mean,
                   const View& loss, const View& lse) {
  check(kCrossEntropy, x, labels, ignored, mean, loss, lse);
  const std::int64_t count = counted(kCrossEntropy.op, x, labels, ignored);
  require_size(kCrossEntropy.op, "lse", lse, x.rows);
  const double sum = BOOST_EXT_CPU(cross_entropy)(context, x, static_cast<const std::int32_t*>(labels.data),
                                                  static_cast<std::int32_t>(ignored), static_cast<float*>(lse.data));
  *static_cast<float*>(loss.data) = static_cast<float>(mean ? sum / static_cast<double>(count) : sum);
}

void cross_entropy_gradient(const Context& context, const View& x, const View& labels, const View& lse,
                            const View& dloss, std::int64_t ignored, bool mean, const View& dx) {
  const char* op = kCrossEntropyGradient.op;
  check(kCrossEntropyGradient, x, labels, lse, dloss, ignored, mean, dx);
  const std::int64_t count = counted(op, x, labels, ignored);
  require_size(op, "lse", lse, x.rows);
  require_size(op, "dx", dx, x.size);
  const double scale = *static_cast<const float*>(dloss.data);
  const auto factor = static_cast<float>(mean ? scale / static_cast<double>(count) : scale);
  BOOST_EXT_CPU(cross_entropy_gradient)
  (context, x, static_cast<const std::int32_t*>(labels.data), static_cast<const float*>(lse.data),
   static_cast<std::int32_t>(ignored), factor, dx);
}

}  // namespace boost_ext
