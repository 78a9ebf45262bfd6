#include "ops/group_loss_scale.h"

#include <algorithm>
#include <cmath>

#include "ops/loss_scale_update.h"

namespace boost_ext {
namespace {

constexpr double kShrink = 0.70710678118654752;  // 1 / sqrt(2)
constexpr double kGrow = 1.0006933874625807;     // 2^(1/1000)

float& value(const View& v) { return *static_cast<float*>(v.data); }

void require_scales(const char* op, const Views& scales, const View& found) {
  for (std::size_t i = 0; i < scales.size(); ++i) {
    const Name name("scales", static_cast<std::int64_t>(i));
    require(std::isfinite(value(scales[i])) && value(scales[i]) >= 1, op, ": ", name, " must be finite and >= 1, got ",
            value(scales[i]));
  }
  require_size(op, "found", found, static_cast<std::int64_t>(scales.size()));
}

}  // namespace

void group_unscale_and_check(const Context& context, const View& groups, const View& found, const View& report,
                             const Views& scales, const Views& grads, const View& out) {
  const char* op = kGroupUnscaleAndCheck.op;
  check(kGroupUnscaleAndCheck, groups, found, report, scales, grads, out);
  const auto tensors = static_cast<std::int64_t>(grads.size());
  const auto count = static_cast<std::int64_t>(scales.size());
  require_size(op, "groups", groups, tensors);
  require_scales(op, scales, found);
  require_report(op, report, grads.size());
  const auto* group = static_cast<const std::int32_t*>(groups.data);
  const std::vector<std::size_t> first = first_occurrence(grads);
  std::vector<Views> members(scales.size());
  std::vector<std::vector<std::int64_t>> places(scales.size());
  Overlap overlap(op);
  for (std::int64_t i = 0; i < tensors; ++i) {
    require(group[i] >= 0 && group[i] < count, op, ": groups[", i, "] must be from 0 to ", count - 1, ", got ",
            group[i]);
    const auto twin = static_cast<std::int64_t>(first[i]);
    if (twin != i && group[twin] != group[i]) {
      overlap.writes({"grads", twin}, grads[twin]);
      overlap.writes({"grads", i}, grads[i]);
    }
    members[group[i]].push_back(grads[i]);
    places[group[i]].push_back(i);
  }
  overlap.check();

  auto* flags = static_cast<std::int32_t*>(found.data);
  auto* rows = static_cast<double*>(report.data);
  bool any = false;
  for (std::int64_t k = 0; k < count; ++k) {
    flags[k] = -1;
    if (members[k].empty()) continue;
    flags[k] = 0;
    const std::vector<Finiteness> seen = unscale_and_find(context, members[k], 1.0 / value(scales[k]));
    for (std::size_t i = 0; i < seen.size(); ++i) {
      write_row(rows + 4 * places[k][i], seen[i]);
      if (seen[i].found()) flags[k] = 1;
    }
    any |= flags[k] == 1;
  }
  value(out) = any ? 1 : 0;
}

void group_loss_scale_update(const Context&, double max_scale, const View& overflows, const View& found,
                             const Views& scales) {
  const char* op = kGroupLossScaleUpdate.op;
  check(kGroupLossScaleUpdate, max_scale, overflows, found, scales);
  require_scales(op, scales, found);
  require(std::isfinite(max_scale) && max_scale >= 1 && max_scale <= 3.4028234663852886e38, op,
          ": max_scale must be a finite float32 >= 1, got ", max_scale);

  const auto* flags = static_cast<const std::int32_t*>(found.data);
  bool any = false;
  for (std::size_t k = 0; k < scales.size(); ++k) {
    float& scale = value(scales[k]);
    if (flags[k] == 1) scale = static_cast<float>(std::max(scale * kShrink, 1.0));
    if (flags[k] == 0) scale = static_cast<float>(std::min(scale * kGrow, max_scale));
    any |= flags[k] == 1;
  }
  std::int32_t& row = *static_cast<std::int32_t*>(overflows.data);
  row = any ? row + 1 : 0;
  if (row > kMaxConsecutiveOverflows) {
    throw std::runtime_error(
        text(op, ": ", row, " overflows in a row; the network or its inputs produce inf or nan whatever the scale"));
  }
}

}  // namespace boost_ext
