#include "ops/unscale_and_check.h"

#include <algorithm>

namespace boost_ext {
namespace {

// A caller may run with subnormals flushed to zero, as MindSpore does: then in two passes with normal factors.
std::vector<float> factors(double inv_scale) {
  if (inv_scale >= kLeastNormal) return {static_cast<float>(inv_scale)};
  return {static_cast<float>(1 / kTwo64), static_cast<float>(inv_scale * kTwo64)};
}

void answer(const std::vector<Finiteness>& rows, const View& report, const View& found) {
  const bool any = std::any_of(rows.begin(), rows.end(), [](const Finiteness& f) { return f.found(); });
  *static_cast<float*>(found.data) = any ? 1.0F : 0.0F;
  if (report.data == nullptr) return;
  for (std::size_t i = 0; i < rows.size(); ++i) write_row(static_cast<double*>(report.data) + 4 * i, rows[i]);
}

// Of gradients that were only read.
void answer_scaled(const std::vector<Finiteness>& rows, double inv_scale, const View& report, const View& found) {
  answer(rows, report, found);
  for (std::size_t i = 0; i < rows.size(); ++i) static_cast<double*>(report.data)[4 * i + 3] *= inv_scale;
}

}  // namespace

double inverse_scale(double scale, double other) { return 1 / (scale * other); }

void unscale_and_check(const Context& context, const Views& grads, const Number& inv_scale, const View& report,
                       const View& found) {
  const bool known = !inv_scale.on_device(), reports = report.data != nullptr;
  const Device device = check(kUnscaleAndCheck, grads, inv_scale, report, found);
  require(!known || (inv_scale.value >= kLeastSubnormal && inv_scale.value <= 3.4028234663852886e38),
          kUnscaleAndCheck.op, ": inv_scale must be a positive float32, got ", inv_scale.value);
  if (reports) require_report(kUnscaleAndCheck.op, report, grads.size());
  if (device == Device::cpu) return answer(unscale_and_find(context, grads, inv_scale.value), report, found);
  const Views distinct = without_repeats(grads, first_occurrence(grads));
  if (device == Device::ascend) {
    require(known, kUnscaleAndCheck.op, ": inv_scale must be a number on Ascend, got an array");
    require(!reports, kUnscaleAndCheck.op, ": report must be left out on Ascend, got one");
    return BOOST_EXT_ASCEND(unscale_and_check)(context, distinct, factors(inv_scale.value), found);
  }
  auto* flag = static_cast<float*>(found.data);
  auto* rows = static_cast<double*>(report.data);
  const bool tied = distinct.size() != grads.size();  // then only a second look writes a row for each place
  BOOST_EXT_CUDA(unscale_and_check)(context, distinct, inv_scale, tied ? nullptr : rows, flag);
  if (tied && reports) BOOST_EXT_CUDA(unscale_and_check)(context, grads, Number{1, {}}, rows, flag);
}

std::vector<Finiteness> unscale_and_find(const Context& context, const Views& grads, double inv_scale) {
  const std::vector<std::size_t> first = first_occurrence(grads);
  const Views distinct = without_repeats(grads, first);
  std::vector<Finiteness> found(distinct.size());
  for (const float factor : factors(inv_scale)) {
    BOOST_EXT_CPU(unscale_and_check)(context, distinct, factor, found.data());
  }
  if (distinct.size() == grads.size()) return found;
  std::vector<Finiteness> result(grads.size());
  for (std::size_t i = 0, next = 0; i < grads.size(); ++i) result[i] = first[i] == i ? found[next++] : result[first[i]];
  return result;
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

void check_gradients(const Context& context, const Views& grads, double inv_scale, const View& report,
                     const View& found) {
  check(kCheckGradients, grads, inv_scale, report, found);
  require_report(kCheckGradients.op, report, grads.size());
  std::vector<Finiteness> rows(grads.size());
  BOOST_EXT_CPU(unscale_and_check)(context, grads, 1.0F, rows.data());
  answer_scaled(rows, inv_scale, report, found);
}

std::vector<double> check_and_square(const Context& context, const Views& grads, double inv_scale, const View& report,
                                     const View& found) {
  require_report(kCheckGradients.op, report, grads.size());
  std::vector<Finiteness> rows(grads.size());
  std::vector<double> squares(grads.size());
  BOOST_EXT_CPU(check_and_square)(context, grads, rows.data(), squares.data());
  answer_scaled(rows, inv_scale, report, found);
  return squares;
}

}  // namespace boost_ext
