// The graph-mode door: what MindSpore's ops.Custom (func_type "aot") calls. A function gets its inputs and then its one
// output, a bool of shape (1,), as flat lists; everything else an op produces it writes into its inputs, which the
// primitive declares (boost_ext.ms.native). The GIL is not held. MindSpore shows only the number that we return, so the
// message goes to stderr first.
#include "doors/graph.h"
#include "doors/packed_curvature.h"
#include "doors/packed_step.h"
#include "ops/accumulate.h"
#include "ops/adafactor_step.h"
#include "ops/adasum.h"
#include "ops/bfgs_update.h"
#include "ops/centralize.h"
#include "ops/clip_by_global_norm.h"
#include "ops/covariance.h"
#include "ops/damped_inverse.h"
#include "ops/dim_reduce.h"
#include "ops/global_norm.h"
#include "ops/group_loss_scale.h"
#include "ops/lars.h"
#include "ops/loss_scale_update.h"
#include "ops/optimizer_step.h"
#include "ops/pca_back_project.h"
#include "ops/pca_project.h"
#include "ops/precondition.h"
#include "ops/timestamp.h"
#include "ops/unscale_and_check.h"

namespace {

using namespace boost_ext;

// The scale is what the loss was multiplied with; powers of two have an exact reciprocal.
// In float64: MindSpore flushes subnormal float32 to zero, and those are the reciprocals of scales beyond 2^126.
double reciprocal(float scale) { return 1.0 / static_cast<double>(scale); }

void write(const View& v, float value) { *static_cast<float*>(v.data) = value; }

// The scale of an int8 P follows it.
Views scale_of(const View& P, Params& p) { return p.list(P.dtype == DType::i8 ? 1 : 0); }

// P, its scale, out, grads...
BOOST_EXT_GRAPH_OP(pca_project) {
  const View P = p.take();
  const Views scale = scale_of(P, p);
  const View out = p.take();
  pca_project(cpu_context(), P, p.list(p.left()), out, scale.empty() ? nullptr : scale.data());
}

// P, its scale, two vectors, two lists of outputs
BOOST_EXT_GRAPH_OP(pca_back_project) {
  const View P = p.take();
  const Views scale = scale_of(P, p);
  const Views vectors = p.list(2);
  const int n = p.split(2);
  std::vector<Views> out;
  out.push_back(p.list(n));
  out.push_back(p.list(n));
  pca_back_project(cpu_context(), P, vectors, out, scale.empty() ? nullptr : scale.data());
}

// B, s, y; the output says whether it updated
BOOST_EXT_GRAPH_OP(bfgs_update) {
  const View B = p.take(), s = p.take(), y = p.take();
  p.result(bfgs_update(cpu_context(), B, s, y, p.scalar()));
}

// a..., b..., out...
BOOST_EXT_GRAPH_OP(adasum_pair) {
  const int n = p.split(3);
  const Views a = p.list(n), b = p.list(n);
  adasum_pair(cpu_context(), a, b, p.list(n));
}

// scale, grads...; the output says whether something was inf or nan
BOOST_EXT_GRAPH_OP(unscale_and_check) {
  const double inv_scale = reciprocal(p.scalar());
  bool found = false;
  for (const Finiteness& f : unscale_and_check(cpu_context(), p.list(p.left()), inv_scale)) found |= f.found();
  p.result(found);
}

// scale, report, grads...; the output says whether something was inf or nan
BOOST_EXT_GRAPH_OP(unscale_and_check_report) {
  const double inv_scale = reciprocal(p.scalar());
  const View report = p.take();
  p.result(unscale_and_check(cpu_context(), p.list(p.left()), inv_scale, report));
}

// the same, which only reads the gradients
BOOST_EXT_GRAPH_OP(check_report) {
  const double inv_scale = reciprocal(p.scalar());
  const View report = p.take();
  p.result(check(cpu_context(), p.list(p.left()), inv_scale, report));
}

ClipSettings clip_settings(Params& p) {
  const View v = p.take();
  require_dtype("clip_by_global_norm", "settings", v, DType::f32);
  require_size("clip_by_global_norm", "settings", v, 2);
  const auto* s = static_cast<const float*>(v.data);
  return {s[0], s[1]};
}

// scale, settings (2,): clip_norm and scale of the optimizer, report, norm, divisor, grads...
BOOST_EXT_GRAPH_OP(check_and_clip) {
  const auto scale = static_cast<double>(p.scalar());
  const ClipSettings settings = clip_settings(p);
  const View report = p.take(), norm = p.take(), divisor = p.take();
  p.result(check_and_clip(cpu_context(), p.list(p.left()), scale, settings, report, norm, divisor));
}

// settings, norm, grads...
BOOST_EXT_GRAPH_OP(clip_by_global_norm) {
  const ClipSettings settings = clip_settings(p);
  const View norm = p.take();
  require_dtype("clip_by_global_norm", "norm", norm, DType::f32);
  require_size("clip_by_global_norm", "norm", norm, 1);
  write(norm, static_cast<float>(clip_by_global_norm(cpu_context(), p.list(p.left()), settings)));
}

// scale, steps, count, accumulators..., grads...: adds grads / (scale * steps); a count of 0 overwrites
BOOST_EXT_GRAPH_OP(accumulate) {
  const double scale = static_cast<double>(p.scalar());
  const double factor = 1.0 / (scale * static_cast<double>(p.scalar()));
  const bool first = p.integer() == 0;
  const int n = p.split(2);
  const Views accumulators = p.list(n);
  accumulate(cpu_context(), accumulators, p.list(n), factor, first);
}

// stamps, slot, dependencies...: they are not read, and may have any dtype
BOOST_EXT_GRAPH_OP(timestamp) {
  const View stamps = p.take();
  timestamp(stamps, p.integer());
}

// see packed_step.h
BOOST_EXT_GRAPH_OP(optimizer_step) { packed_step(p.list(p.left())); }
BOOST_EXT_GRAPH_OP(lars) { packed_lars(p.list(p.left())); }

// see packed_curvature.h
BOOST_EXT_GRAPH_OP(covariance) { packed_covariance(p.list(p.left())); }
BOOST_EXT_GRAPH_OP(damped_inverse) { p.result(packed_inverse(p.list(p.left()))); }

// The same without a write: MindSpore allocates the new gradients, which come at the end in the place of the bool.
extern "C" __attribute__((visibility("default"))) int boost_ext_precondition(int nparam, void** params, int* ndims,
                                                                             int64_t** shapes, const char** dtypes,
                                                                             void*, void*) {
  return guarded([&] {
    Params p("precondition", nparam + 1, params, ndims, shapes, dtypes);
    packed_precondition(p.list(nparam));
  });
}

// norm (1,), tensors...
BOOST_EXT_GRAPH_OP(global_norm) {
  const View norm = p.take();
  require_dtype("global_norm", "norm", norm, DType::f32);
  require_size("global_norm", "norm", norm, 1);
  write(norm, static_cast<float>(global_norm(cpu_context(), p.list(p.left()))));
}

// Gradient centralization without a write: n tensors in, n tensors out, which MindSpore allocates; so there is no bool
// at the end.
extern "C" __attribute__((visibility("default"))) int boost_ext_centralized(int nparam, void** params, int* ndims,
                                                                            int64_t** shapes, const char** dtypes,
                                                                            void*, void*) {
  return guarded([&] {
    Params p("centralize", nparam + 1, params, ndims, shapes, dtypes);
    const int n = p.split(2);
    const Views grads = p.list(n), out = p.list(n);
    centralize(cpu_context(), grads, out);
  });
}

// What an all-reduce needs of many gradients: n tensors in, one float32 vector out, which MindSpore allocates.
extern "C" __attribute__((visibility("default"))) int boost_ext_joined(int nparam, void** params, int* ndims,
                                                                       int64_t** shapes, const char** dtypes, void*,
                                                                       void*) {
  return guarded([&] {
    Params p("joined", nparam + 1, params, ndims, shapes, dtypes);
    const Views parts = p.list(p.left() - 1);
    const View whole = p.take();
    require_size("joined", "out", whole, total_size(parts));
    Views slices;
    auto* next = static_cast<float*>(whole.data);
    for (const View& part : parts) {
      View slice = whole;
      slice.data = next;
      slice.size = part.size;
      slices.push_back(slice);
      next += part.size;
    }
    accumulate(cpu_context(), slices, parts, 1.0, true);
  });
}

// And back: factor, the vector, n tensors that say shapes and dtypes; factor times the vector in n tensors out. It is a
// projection with one row.
extern "C" __attribute__((visibility("default"))) int boost_ext_parted(int nparam, void** params, int* ndims,
                                                                       int64_t** shapes, const char** dtypes, void*,
                                                                       void*) {
  return guarded([&] {
    Params p("parted", nparam + 1, params, ndims, shapes, dtypes);
    const View factor = p.take();
    View whole = p.take();
    whole.rows = 1;
    whole.ndim = 2;
    const int n = p.split(2);
    p.list(n);
    pca_back_project(cpu_context(), whole, {factor}, {p.list(n)});
  });
}

// scale, counters, overflow, rule (3,): factor, window, max_scale
BOOST_EXT_GRAPH_OP(loss_scale_update) {
  const View scale = p.take(), counters = p.take();
  const bool overflow = p.flag();
  const View rule = p.take();
  require_dtype("loss_scale_update", "rule", rule, DType::f32);
  require_size("loss_scale_update", "rule", rule, 3);
  const auto* r = static_cast<const float*>(rule.data);
  require(r[1] >= 1 && r[1] <= 16777216, "loss_scale_update", ": window must be from 1 to 2^24, got ", r[1]);
  loss_scale_update(scale, counters, overflow, {r[0], static_cast<std::int64_t>(r[1]), r[2]});
}

// groups, found (one for each scale), report, scales..., grads...; the output says whether some group overflowed
BOOST_EXT_GRAPH_OP(group_unscale_and_check) {
  const View groups = p.take(), found = p.take(), report = p.take();
  const Views scales = p.list(static_cast<int>(found.size));
  p.result(group_unscale_and_check(cpu_context(), p.list(p.left()), groups, scales, found, report));
}

// max_scale, overflows, found, scales...
BOOST_EXT_GRAPH_OP(group_loss_scale_update) {
  const double max_scale = static_cast<double>(p.scalar());
  const View overflows = p.take(), found = p.take();
  group_loss_scale_update(p.list(p.left()), found, overflows, max_scale);
}

// B, s, gk_last, started, gk, scale, B_next, dk, slope (1,), eps
BOOST_EXT_GRAPH_OP(dim_reduce_direction) {
  const View B = p.take(), s = p.take(), gk_last = p.take();
  const bool started = p.flag();
  const View gk = p.take();
  const double inv_scale = reciprocal(p.scalar());
  const View B_next = p.take(), dk = p.take(), slope = p.take();
  require_dtype("dim_reduce_direction", "slope", slope, DType::f32);
  require_size("dim_reduce_direction", "slope", slope, 1);
  write(slope, static_cast<float>(
                   dim_reduce_direction(cpu_context(), B, s, gk_last, started, gk, inv_scale, B_next, dk, p.scalar())));
}

// step, save, weights..., saved..., dn...
BOOST_EXT_GRAPH_OP(dim_reduce_trial) {
  const View step = p.take();
  const bool save = p.flag();
  const int n = p.split(3);
  const Views weights = p.list(n), saved = p.list(n);
  dim_reduce_trial(cpu_context(), weights, saved, p.list(n), step, save);
}

// gamma, alpha, rho, scale, momentum..., grads..., grad_proj..., dn...; delta is written over grad_proj
BOOST_EXT_GRAPH_OP(dim_reduce_apply) {
  DimReduceCoefficients c{};
  c.gamma = p.scalar();
  c.alpha = p.scalar();
  c.rho.value = p.scalar();
  c.inv_scale.value = reciprocal(p.scalar());
  const int n = p.split(4);
  const Views momentum = p.list(n), grads = p.list(n), proj = p.list(n);
  dim_reduce_apply(cpu_context(), momentum, grads, proj, p.list(n), c, proj);
}

// P, coordinates, origin (2, n), weights...; weights = the first row of origin + P^T . coordinates, which the second
// row holds meanwhile: two projections, so that the sum is one of float32 whatever the weights are stored as.
BOOST_EXT_GRAPH_OP(subspace_point) {
  const View P = p.take(), coordinates = p.take(), origin = p.take();
  require_dtype("subspace_point", "origin", origin, DType::f32);
  require(origin.ndim == 2 && origin.rows == 2, "subspace_point: origin must have two rows, got ", origin.rows);
  View moved = origin, ones;
  moved.set_shape(1, [&](int) { return origin.size / 2; });
  moved.data = static_cast<float*>(origin.data) + moved.size;
  float one[2] = {1.0F, 1.0F};
  ones.data = one;
  ones.set_shape(1, [](int) { return 2; });
  pca_back_project(cpu_context(), P, {coordinates}, {{moved}});
  pca_back_project(cpu_context(), origin, {ones}, {p.list(p.left())});
}

}  // namespace
