#include "ops/unscale_and_check.h"

namespace boost_ext {
namespace {

// The arguments that all forms share. Returns the tensors without those that are listed again, and says in `place`
// which of them each one of the list is.
Views require_grads(const Views& grads, double inv_scale, bool writes, std::vector<std::size_t>& place) {
  const char* op = "unscale_and_check";
  const List list{"grads", grads};
  require_floats(op, list);
  require_finite(op, "inv_scale", inv_scale);
  require(inv_scale >= kLeastSubnormal && inv_scale <= 3.4028234663852886e38, op,
          ": inv_scale must be a positive float32, got ", inv_scale);
  const std::vector<std::size_t> first = first_occurrence(grads);
  Views distinct;
  place.resize(grads.size());
  Overlap overlap(op);
  for (std::size_t i = 0; i < grads.size(); ++i) {
    place[i] = first[i] == i ? distinct.size() : place[first[i]];
    if (first[i] != i) continue;
    distinct.push_back(grads[i]);
    const Name name("grads", static_cast<std::int64_t>(i));
    if (writes)
      overlap.writes(name, grads[i]);
    else
      overlap.reads(name, grads[i]);
  }
  if (writes) require_writables(op, list);
  overlap.check();
  return distinct;
}

// A caller may run with subnormals flushed to zero, as MindSpore does: then in two passes with normal factors.
std::vector<float> factors(double inv_scale) {
  if (inv_scale >= kLeastNormal) return {static_cast<float>(inv_scale)};
  return {static_cast<float>(1 / kTwo64), static_cast<float>(inv_scale * kTwo64)};
}

}  // namespace

std::vector<Finiteness> unscale_and_check(const Context& context, const Views& grads, double inv_scale) {
  require_cpu("unscale_and_check", {&grads});
  std::vector<std::size_t> place;
  const bool writes = static_cast<float>(inv_scale) != 1;
  const Views distinct = require_grads(grads, inv_scale, writes, place);
  std::vector<Finiteness> found(distinct.size());
  for (const float factor : factors(inv_scale)) {
    BOOST_EXT_CPU(unscale_and_check)(context, distinct, factor, found.data());
  }
  if (distinct.size() == grads.size()) return found;
  std::vector<Finiteness> result(grads.size());
  for (std::size_t i = 0; i < grads.size(); ++i) result[i] = found[place[i]];
  return result;
}

void unscale_and_check(const Context& context, const Views& grads, const Number& inv_scale, const View& report,
                       const View& found) {
  const char* op = "unscale_and_check";
  const bool reports = report.data != nullptr;
  const Device device = require_any_device(op, {&grads}, {inv_scale.at, found, report});
  const bool known = !inv_scale.on_device();
  std::vector<std::size_t> place;
  const Views distinct =
      require_grads(grads, known ? inv_scale.value : 1, !known || static_cast<float>(inv_scale.value) != 1, place);
  require_result(op, "out", found, DType::f32);
  if (reports) require_report(op, report, grads.size());
  Overlap overlap(op);
  overlap.writes("out", found);
  if (reports) overlap.writes("report", report);
  overlap.reads({"grads", grads});
  overlap.reads("inv_scale", inv_scale.at);
  overlap.check();
  if (device == Device::ascend) {
    require(known, op, ": inv_scale must be a number on Ascend, got an array");
    require(!reports, op, ": report must be left out on Ascend, got one");
    return BOOST_EXT_ASCEND(unscale_and_check)(context, distinct, factors(inv_scale.value), found);
  }
  auto* flag = static_cast<float*>(found.data);
  auto* rows = static_cast<double*>(report.data);
  if (device == Device::cuda) {
    const bool tied = distinct.size() != grads.size();  // then only a second look writes a row for each place
    BOOST_EXT_CUDA(unscale_and_check)(context, distinct, inv_scale, tied ? nullptr : rows, flag);
    if (tied && reports) BOOST_EXT_CUDA(unscale_and_check)(context, grads, Number{1, {}}, rows, flag);
    return;
  }
  *flag = 0;
  for (const Finiteness& f : unscale_and_check(context, grads, inv_scale.value)) {
    if (f.found()) *flag = 1;
    if (!reports) continue;
    write_row(rows, f);
    rows += 4;
  }
}

void require_report(const char* op, const View& report, std::size_t tensors) {
  require_dtype(op, "report", report, DType::f64);
  require_size(op, "report", report, 4 * static_cast<std::int64_t>(tensors));
  require_writable(op, "report", report);
}

void write_row(double* row, const Finiteness& f) {
  row[0] = static_cast<double>(f.inf);
  row[1] = static_cast<double>(f.nan);
  row[2] = static_cast<double>(f.first);
  row[3] = static_cast<double>(f.max_abs);
}

bool unscale_and_check(const Context& context, const Views& grads, double inv_scale, const View& report) {
  const char* op = "unscale_and_check";
  require_cpu(op, {&grads}, {report});
  require_report(op, report, grads.size());
  Overlap overlap(op);
  overlap.writes("report", report);
  overlap.reads({"grads", grads});
  overlap.check();
  bool found = false;
  auto* row = static_cast<double*>(report.data);
  for (const Finiteness& f : unscale_and_check(context, grads, inv_scale)) {
    found |= f.found();
    write_row(row, f);
    row += 4;
  }
  return found;
}

bool check(const Context& context, const Views& grads, double inv_scale, const View& report) {
  require_finite("unscale_and_check", "inv_scale", inv_scale);
  const bool found = unscale_and_check(context, grads, 1, report);
  auto* row = static_cast<double*>(report.data);
  for (std::size_t i = 0; i < grads.size(); ++i) row[4 * i + 3] *= inv_scale;
  return found;
}

bool check_and_square(const Context& context, const Views& grads, double inv_scale, const View& report,
                      std::vector<double>& squares) {
  const char* op = "unscale_and_check";
  require_cpu(op, {&grads}, {report});
  require_floats(op, {"grads", grads});
  require_finite(op, "inv_scale", inv_scale);
  require_report(op, report, grads.size());
  Overlap overlap(op);
  overlap.writes("report", report);
  overlap.reads({"grads", grads});
  overlap.check();
  std::vector<Finiteness> rows(grads.size());
  squares.assign(grads.size(), 0);
  BOOST_EXT_CPU(check_and_square)(context, grads, rows.data(), squares.data());
  bool found = false;
  auto* row = static_cast<double*>(report.data);
  for (Finiteness& f : rows) {
    found |= f.found();
    write_row(row, f);
    row[3] *= inv_scale;
    row += 4;
  }
  return found;
}

}  // namespace boost_ext
