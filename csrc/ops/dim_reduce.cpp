#include "ops/dim_reduce.h"

#include <cmath>

#include "ops/bfgs_update.h"

namespace boost_ext {
namespace {

void require_float32s(const char* op, const List& list, const List& like) {
  require_same_sizes(op, list, like);
  for (std::size_t i = 0; i < list.views.size(); ++i) {
    require_dtype(op, {list.arg, static_cast<std::int64_t>(i)}, list.views[i], DType::f32);
  }
}

// One factor for all tensors, or one each.
void require_factors(const char* op, const char* arg, const Factors& f, std::size_t tensors) {
  if (!f.is_array) return require_finite(op, arg, f.value);
  require_dtype(op, arg, f.at, DType::f32);
  const auto count = static_cast<std::int64_t>(tensors);
  require(f.at.size == 1 || f.at.size == count, op, ": ", arg, " must have 1 element or one for each of the ", count,
          " tensors, got ", f.at.size);
}

// As the CPU's kernels read them, `stride` apart.
struct HostFactors {
  const float* data;
  std::int64_t stride;
  explicit HostFactors(const Factors& f)
      : data(f.is_array ? static_cast<const float*>(f.at.data) : &f.value), stride(f.at.size > 1 ? 1 : 0) {}
};

// The arguments that both forms of dim_reduce_apply share.
Overlap require_apply(const char* op, const Views& momentum, const Views& grads, const Views& grad_proj,
                      const Views& dn, const DimReduceCoefficients& c, bool proj_is_twin) {
  const List g{"grads", grads};
  require_floats(op, g);
  require_float32s(op, {"momentum", momentum}, g);
  require_float32s(op, {"grad_proj", grad_proj}, g);
  require_float32s(op, {"dn", dn}, g);
  require_writables(op, {"momentum", momentum});
  require_finite(op, "gamma", c.gamma);
  require_finite(op, "alpha", c.alpha);
  require_finite(op, "rho", c.rho.value);
  require_finite(op, "inv_scale", c.inv_scale.value);
  Overlap overlap(op);
  overlap.writes({"momentum", momentum});
  overlap.reads(g);
  overlap.reads({"grad_proj", grad_proj}, proj_is_twin);
  overlap.reads({"dn", dn});
  overlap.reads("rho", c.rho.at);
  overlap.reads("inv_scale", c.inv_scale.at);
  return overlap;
}

Overlap require_direction(const char* op, const View& B, const View& s, const View& gk_last, const View& gk,
                          double inv_scale, const View& B_next, const View& dk, double eps) {
  require_square(op, "B", B);
  require_square(op, "B_next", B_next);
  const std::int64_t k = B.rows;
  Overlap overlap(op);
  struct Operand {
    const char* arg;
    const View& v;
    std::int64_t size;
    bool written;
  };
  for (const Operand& o :
       {Operand{"B", B, k * k, false}, Operand{"B_next", B_next, k * k, true}, Operand{"s", s, k, false},
        Operand{"gk_last", gk_last, k, false}, Operand{"gk", gk, k, true}, Operand{"dk", dk, k, true}}) {
    require_dtype(op, o.arg, o.v, DType::f32);
    require_size(op, o.arg, o.v, o.size);
    if (o.written)
      overlap.writes(o.arg, o.v);
    else
      overlap.reads(o.arg, o.v);
  }
  require_writable(op, "gk", gk);
  require_writable(op, "B_next", B_next);
  require_writable(op, "dk", dk);
  require_finite(op, "inv_scale", inv_scale);
  require(std::isfinite(eps) && eps >= 0, op, ": eps must be finite and >= 0, got ", eps);
  return overlap;
}

float* floats(const View& v) { return static_cast<float*>(v.data); }

}  // namespace

double dim_reduce_direction(const Context&, const View& B, const View& s, const View& gk_last, bool started,
                            const View& gk, double inv_scale, const View& B_next, const View& dk, double eps) {
  const char* op = "dim_reduce_direction";
  require_cpu(op, {}, {B, s, gk_last, gk, B_next, dk});
  require_direction(op, B, s, gk_last, gk, inv_scale, B_next, dk, eps).check();
  return BOOST_EXT_CPU(dim_reduce_direction)(floats(B), floats(s), floats(gk_last), started, floats(gk),
                                             static_cast<float>(inv_scale), floats(B_next), floats(dk), B.rows, eps);
}

void dim_reduce_direction(const Context& context, const View& B, const View& s, const View& gk_last, bool started,
                          const View& gk, const Number& inv_scale, const View& B_next, const View& dk, double eps,
                          const View& out) {
  const char* op = "dim_reduce_direction";
  const Device device = require_device(op, {}, {B, s, gk_last, gk, B_next, dk, inv_scale.at, out});
  Overlap overlap = require_direction(op, B, s, gk_last, gk, inv_scale.value, B_next, dk, eps);
  require_result(op, "out", out, DType::f64);
  overlap.reads("inv_scale", inv_scale.at);
  overlap.writes("out", out);
  overlap.check();
  auto* slope = static_cast<double*>(out.data);
  if (device == Device::cuda) {
    return BOOST_EXT_CUDA(dim_reduce_direction)(context, floats(B), floats(s), floats(gk_last), started, floats(gk),
                                                inv_scale, floats(B_next), floats(dk), B.rows, eps, slope);
  }
  *slope = dim_reduce_direction(context, B, s, gk_last, started, gk, inv_scale.value, B_next, dk, eps);
}

void dim_reduce_trial(const Context& context, const Views& weights, const Views& saved, const Views& dn,
                      const Factors& step, bool save) {
  const char* op = "dim_reduce_trial";
  const Device device = require_device(op, {&weights, &saved, &dn}, {step.at});
  const List w{"weights", weights};
  require_floats(op, w);
  require_same_sizes(op, {"saved", saved}, w);
  require_floats(op, {"saved", saved});
  require_same_dtypes(op, {"saved", saved}, w);
  require_float32s(op, {"dn", dn}, w);
  require_writables(op, w);
  if (save) require_writables(op, {"saved", saved});
  require_factors(op, "step", step, weights.size());
  Overlap overlap(op);
  overlap.writes(w);
  if (save)
    overlap.writes({"saved", saved});
  else
    overlap.reads({"saved", saved});
  overlap.reads({"dn", dn});
  overlap.reads("step", step.at);
  overlap.check();
  if (device == Device::cuda) return BOOST_EXT_CUDA(dim_reduce_trial)(context, weights, saved, dn, step, save);
  const HostFactors factors(step);
  BOOST_EXT_CPU(dim_reduce_trial)(context, weights, saved, dn, factors.data, factors.stride, save);
}

void dim_reduce_apply(const Context& context, const Views& momentum, const Views& grads, const Views& grad_proj,
                      const Views& dn, const DimReduceCoefficients& c, const Views& out) {
  const char* op = "dim_reduce_apply";
  const Device device = require_device(op, {&grads, &momentum, &grad_proj, &dn, &out}, {c.rho.at, c.inv_scale.at});
  Overlap overlap = require_apply(op, momentum, grads, grad_proj, dn, c, true);
  require_float32s(op, {"out", out}, {"grads", grads});
  require_writables(op, {"out", out});
  overlap.writes({"out", out}, true);
  overlap.check();
  if (device == Device::cuda) {
    return BOOST_EXT_CUDA(dim_reduce_apply)(context, momentum, grads, grad_proj, dn, c, out, out, nullptr);
  }
  BOOST_EXT_CPU(dim_reduce_apply)(context, momentum, grads, grad_proj, dn, c, out, out, nullptr, 0);
}

void dim_reduce_apply(const Context& context, const Views& momentum, const Views& grads, const Views& grad_proj,
                      const Views& dn, const DimReduceCoefficients& c, const Views& weights, const Views& saved,
                      const Factors& lr) {
  const char* op = "dim_reduce_apply";
  const Device device =
      require_device(op, {&grads, &momentum, &grad_proj, &dn, &weights, &saved}, {lr.at, c.rho.at, c.inv_scale.at});
  Overlap overlap = require_apply(op, momentum, grads, grad_proj, dn, c, false);
  const List w{"out", weights};
  require_same_sizes(op, w, {"grads", grads});
  require_floats(op, w);
  require_same_sizes(op, {"saved", saved}, w);
  require_floats(op, {"saved", saved});
  require_same_dtypes(op, {"saved", saved}, w);
  require_writables(op, w);
  require_factors(op, "lr", lr, weights.size());
  overlap.writes(w, true);
  overlap.reads({"saved", saved}, true);
  overlap.reads("lr", lr.at);
  overlap.check();
  if (device == Device::cuda) {
    return BOOST_EXT_CUDA(dim_reduce_apply)(context, momentum, grads, grad_proj, dn, c, weights, saved, &lr);
  }
  const HostFactors rates(lr);
  BOOST_EXT_CPU(dim_reduce_apply)(context, momentum, grads, grad_proj, dn, c, weights, saved, rates.data, rates.stride);
}

}  // namespace boost_ext
