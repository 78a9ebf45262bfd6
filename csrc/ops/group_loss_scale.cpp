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
  require(!scales.empty(), op, ": scales must hold at least one array, got an empty list");
  for (std::size_t i = 0; i < scales.size(); ++i) {
    const Name name("scales", static_cast<std::int64_t>(i));
    require_dtype(op, name, scales[i], DType::f32);
    require_size(op, name, scales[i], 1);
    require(std::isfinite(value(scales[i])) && value(scales[i]) >= 1, op, ": ", name, " must be finite and >= 1, got ",
            value(scales[i]));
  }
  require_dtype(op, "found", found, DType::i32);
  require_size(op, "found", found, static_cast<std::int64_t>(scales.size()));
}

}  // namespace

bool group_unscale_and_check(const Context& context, const Views& grads, const View& groups, const Views& scales,
                             const View& found, const View& report) {
  const char* op = "group_unscale_and_check";
  require_cpu(op, {&grads, &scales}, {groups, found, report});
  const auto tensors = static_cast<std::int64_t>(grads.size());
  const auto count = static_cast<std::int64_t>(scales.size());
  require_floats(op, {"grads", grads});
  require_writables(op, {"grads", grads});
  require_dtype(op, "groups", groups, DType::i32);
  require_size(op, "groups", groups, tensors);
  require_scales(op, scales, found);
  require_writable(op, "found", found);
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
    if (twin == i || group[twin] != group[i]) overlap.writes({"grads", i}, grads[i]);
    members[group[i]].push_back(grads[i]);
    places[group[i]].push_back(i);
  }
  overlap.writes("found", found);
  overlap.writes("report", report);
  overlap.reads("groups", groups);
  overlap.reads({"scales", scales});
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
  return any;
}

void group_loss_scale_update(const Views& scales, const View& found, const View& overflows, double max_scale) {
  const char* op = "group_loss_scale_update";
  require_cpu(op, {&scales}, {found, overflows});
  require_scales(op, scales, found);
  require_writables(op, {"scales", scales});
  require_dtype(op, "overflows", overflows, DType::i32);
  require_size(op, "overflows", overflows, 1);
  require_writable(op, "overflows", overflows);
  require(std::isfinite(max_scale) && max_scale >= 1 && max_scale <= 3.4028234663852886e38, op,
          ": max_scale must be a finite float32 >= 1, got ", max_scale);
  Overlap overlap(op);
  overlap.writes({"scales", scales});
  overlap.writes("overflows", overflows);
  overlap.reads("found", found);
  overlap.check();

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
