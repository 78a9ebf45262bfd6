#include "ops/adafactor_step.h"

#include <algorithm>
#include <cmath>

namespace boost_ext {
namespace {

constexpr const char* kAdaFactorStep = "adafactor_step";

void require_settings(const AdaFactorSettings& s) {
  const auto positive = [](const char* arg, double x) {
    const auto narrow = static_cast<float>(x);
    require(narrow > 0 && std::isfinite(narrow), kAdaFactorStep, ": ", arg, " must be > 0 and finite in float32, got ",
            x);
  };
  positive("eps[0]", s.eps1);
  positive("eps[1]", s.eps2);
  positive("clip_threshold", s.clip_threshold);
  require(s.decay_rate > 0 && s.decay_rate < 1, kAdaFactorStep, ": decay_rate must be in (0, 1), got ", s.decay_rate);
  require(s.beta1 >= 0 && s.beta1 < 1, kAdaFactorStep, ": beta1 must be in (0, 1), got ", s.beta1);
  require(s.step >= 1, kAdaFactorStep, ": step must be >= 1, got ", s.step);
  require_finite(kAdaFactorStep, "inv_scale", s.scale);
  require(std::isfinite(static_cast<float>(s.scale)), kAdaFactorStep, ": inv_scale must be finite in float32, got ",
          s.scale);
  require(s.relative_step || !s.warmup_init, kAdaFactorStep,
          ": warmup_init must come with relative_step, got it alone");
  require(s.relative_step == s.lr.empty(), kAdaFactorStep, ": lr must be given exactly without relative_step, got ",
          s.lr.empty() ? "neither" : "both");
}

void require_sizes(const AdaFactorTensors& a) {
  for (std::size_t i = 0; i < a.weights.size(); ++i) {
    const View& w = a.weights[i];
    const auto at = static_cast<std::int64_t>(i);
    const auto written = [&](const char* arg, const View& v, bool may_be_half, std::int64_t size) {
      const Name name(arg, at);
      if (may_be_half && v.dtype != DType::f32 && v.dtype != DType::f16) {
        throw TypeError(text(kAdaFactorStep, ": ", name, " must be float32 or float16, got ", dtype_name(v)));
      }
      if (!may_be_half) require_dtype(kAdaFactorStep, name, v, DType::f32);
      require_size(kAdaFactorStep, name, v, size);
      require_writable(kAdaFactorStep, name, v);
    };
    require_writable(kAdaFactorStep, {"params", at}, w);
    if (!a.masters.empty() && w.dtype != DType::f32) written("masters", a.masters[i], false, w.size);
    if (!a.masters.empty() && w.dtype == DType::f32) {
      require(a.masters[i].size == 0, kAdaFactorStep, ": ", Name("masters", at),
              " must be empty beside a float32 parameter, got ", a.masters[i].size, " elements");
    }
    if (!a.moments.empty()) written("moments", a.moments[i], true, w.size);
    if (w.ndim < 2) {
      written("squares", a.squares[i], true, w.size);
    } else if (w.size > 0) {
      written("rows", a.rows[i], false, w.size / w.width);
      written("columns", a.columns[i], false, w.size / w.height);
    }
  }
}

void require_no_overlap(const AdaFactorTensors& a, const View& skip) {
  Overlap overlap(kAdaFactorStep);
  if (skip.data != nullptr) overlap.reads("skip", skip);
  overlap.reads({"grads", a.grads});
  for (std::size_t i = 0; i < a.weights.size(); ++i) {
    const auto writes = [&](const char* arg, const Views& views) {
      overlap.writes(Name(arg, static_cast<std::int64_t>(i)), views[i]);
    };
    writes("params", a.weights);
    if (!a.masters.empty()) writes("masters", a.masters);
    if (!a.moments.empty()) writes("moments", a.moments);
    if (a.weights[i].ndim < 2) {
      writes("squares", a.squares);
    } else {
      writes("rows", a.rows);
      writes("columns", a.columns);
    }
  }
  overlap.check();
}

float relative_rate(const AdaFactorSettings& s) {
  const auto t = static_cast<double>(s.step);
  return static_cast<float>(std::min(s.warmup_init ? 1e-6 * t : 1e-2, 1 / std::sqrt(t)));
}

}  // namespace

AdaFactorSettings adafactor_settings(const double* x, std::size_t count) {
  require(count == 8, kAdaFactorStep, ": hyper must hold 8 numbers, got ", count);
  return {x[0], x[1], x[2], x[3], x[4], x[5] != 0, x[6] != 0, x[7] != 0, 1, 1, {}, {}, {}};
}

void adafactor_step(const Context& context, const AdaFactorSettings& settings, const AdaFactorTensors& a,
                    const View& skip) {
  const Device device = require_device(
      kAdaFactorStep, {&a.weights, &a.grads, &a.rows, &a.columns, &a.squares, &a.moments, &a.masters}, {skip});
  require_floats(kAdaFactorStep, {"params", a.weights});
  require_floats(kAdaFactorStep, {"grads", a.grads});
  const List weights{"params", a.weights};
  require_same_sizes(kAdaFactorStep, {"grads", a.grads}, weights);
  require_same_count(kAdaFactorStep, {"rows", a.rows}, weights);
  require_same_count(kAdaFactorStep, {"columns", a.columns}, weights);
  require_same_count(kAdaFactorStep, {"squares", a.squares}, weights);
  if (!a.masters.empty()) require_same_count(kAdaFactorStep, {"masters", a.masters}, weights);
  require((settings.beta1 != 0) == !a.moments.empty(), kAdaFactorStep,
          ": moments must be given exactly with beta1, got ", a.moments.empty() ? "beta1" : "moments", " alone");
  if (!a.moments.empty()) require_same_count(kAdaFactorStep, {"moments", a.moments}, weights);
  require_settings(settings);
  require_sizes(a);
  const bool may_skip = skip.data != nullptr;
  if (may_skip) {
    require_dtype(kAdaFactorStep, "skip", skip, DType::f32);
    require_size(kAdaFactorStep, "skip", skip, 1);
  }
  require_no_overlap(a, skip);
  const std::size_t n = a.weights.size();
  const auto rate =
      spread(kAdaFactorStep, "lr", settings.lr, n, settings.relative_step ? relative_rate(settings) : 0.0F);
  const auto decay = spread(kAdaFactorStep, "weight_decay", settings.decay, n, 0.0F);
  auto centralize = spread<unsigned char>(kAdaFactorStep, "centralize", settings.centralize, n, 0);
  require_non_negative(kAdaFactorStep, "lr", rate);
  require_non_negative(kAdaFactorStep, "weight_decay", decay);

  Views wide = a.weights, narrow(n);
  for (std::size_t i = 0; i < n; ++i) {
    centralize[i] = centralize[i] && wide[i].ndim >= 2;
    if (a.masters.empty() || a.masters[i].size == 0) continue;
    narrow[i] = wide[i];
    wide[i].data = a.masters[i].data;
    wide[i].dtype = DType::f32;
  }
  const double beta2 = 1 - std::pow(static_cast<double>(settings.step), -settings.decay_rate);
  const auto* flag = static_cast<const float*>(skip.data);
  const AdaFactorStep step{&settings,   beta2,        wide,
                           narrow,      a.grads,      a.rows,
                           a.columns,   a.squares,    a.moments.empty() ? nullptr : a.moments.data(),
                           rate.data(), decay.data(), centralize.data(),
                           flag};
  if (device == Device::cuda) return BOOST_EXT_CUDA(adafactor_step)(context, step);
  if (!may_skip || *flag == 0) BOOST_EXT_CPU(adafactor_step)(context, step);
}

}  // namespace boost_ext
