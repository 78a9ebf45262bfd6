// The ops inside MindSpore, each with its arguments as a flat list (doors/graph.h). What an op produces it writes into
// its inputs, which the primitive declares (boost_ext.ms.native); its one output, of shape (1,), is a bool.
#include <cstring>

#include "doors/graph_from_schema.h"
#include "doors/plain_ops.h"
#include "ops/accumulate.h"
#include "ops/centralize.h"
#include "ops/clip_by_global_norm.h"
#include "ops/dim_reduce.h"
#include "ops/group_loss_scale.h"
#include "ops/loss_scale_update.h"
#include "ops/pca_back_project.h"
#include "ops/pca_project.h"
#include "ops/tensor_statistics.h"
#include "ops/timestamp.h"
#include "ops/unscale_and_check.h"

namespace boost_ext {
namespace {

// Of the next number, the scale that the loss was multiplied with.
double inverse_scale_of(Reader& in) { return inverse_scale(in.number("scale")); }

// The scale of an int8 P follows it.
View scale_of(const View& P, Reader& in) { return P.dtype == DType::i8 ? in.take("scale") : View(); }

ClipSettings clip_settings(Reader& in) {
  const auto& [clip_norm, scale] = *in.data<const float[2]>("settings", DType::f32, 2);
  return {clip_norm, scale};
}

}  // namespace

#define BOOST_EXT_GRAPH_OF(op, schema) \
  BOOST_EXT_GRAPH_OP(op) { read_and_call(in, schema, &op); }
BOOST_EXT_PLAIN_OPS(BOOST_EXT_GRAPH_OF)

// P, its scale, out, grads...
BOOST_EXT_GRAPH_OP(pca_project) {
  const View P = in.take("P");
  const View scale = scale_of(P, in), out = in.take("out");
  pca_project(cpu_context(), P, in.rest("grads"), out, scale);
}

// P, its scale, two vectors, two lists of outputs
BOOST_EXT_GRAPH_OP(pca_back_project) {
  const View P = in.take("P");
  const View scale = scale_of(P, in);
  const Views vectors = in.list("vectors", 2);
  const std::int64_t n = in.length_of(2);
  std::vector<Views> out;
  out.push_back(in.list("out[0]", n));
  out.push_back(in.list("out[1]", n));
  pca_back_project(cpu_context(), P, vectors, out, scale);
}

// scale, grads...; answers whether something was inf or nan
BOOST_EXT_GRAPH_OP(unscale_and_check) {
  const double inv_scale = inverse_scale_of(in);
  float found = 0;
  unscale_and_check(cpu_context(), in.rest("grads"), Number{inv_scale, {}}, View(), view_of(found));
  in.answer(found != 0);
}

// scale, report, grads...; answers whether something was inf or nan
BOOST_EXT_GRAPH_OP(unscale_and_check_report) {
  const double inv_scale = inverse_scale_of(in);
  const View report = in.take("report");
  float found = 0;
  unscale_and_check(cpu_context(), in.rest("grads"), Number{inv_scale, {}}, report, view_of(found));
  in.answer(found != 0);
}

// the same, which only reads the gradients
BOOST_EXT_GRAPH_OP(check_report) {
  const double inv_scale = inverse_scale_of(in);
  const View report = in.take("report");
  float found = 0;
  check_gradients(cpu_context(), in.rest("grads"), inv_scale, report, view_of(found));
  in.answer(found != 0);
}

// scale, settings (2,): clip_norm and scale of the optimizer, report, norm, divisor, grads...
BOOST_EXT_GRAPH_OP(check_and_clip) {
  const auto scale = static_cast<double>(in.number("scale"));
  const ClipSettings settings = clip_settings(in);
  const View report = in.take("report"), norm = in.take("norm"), divisor = in.take("divisor");
  float found = 0;
  check_and_clip(cpu_context(), in.rest("grads"), scale, settings, report, norm, divisor, view_of(found));
  in.answer(found != 0);
}

// settings, norm, grads...
BOOST_EXT_GRAPH_OP(clip_by_global_norm) {
  const ClipSettings settings = clip_settings(in);
  auto* norm = in.written<float>("norm", DType::f32);
  double found = 0;
  clip_by_global_norm(cpu_context(), in.rest("grads"), settings.clip_norm, Number{settings.scale, {}}, view_of(found));
  *norm = static_cast<float>(found);
}

// scale, steps, count, accumulators..., grads...: adds grads / (scale * steps); a count of 0 overwrites
BOOST_EXT_GRAPH_OP(accumulate) {
  const float scale = in.number("scale");
  const double factor = inverse_scale(scale, in.number("steps"));
  const bool first = in.integer("count") == 0;
  const std::int64_t n = in.length_of(2);
  const Views accumulators = in.list("accumulators", n);
  accumulate(cpu_context(), accumulators, in.list("grads", n), factor, first);
}

// stamps, slot, dependencies...: they are not read, and may have any dtype
BOOST_EXT_GRAPH_OP(timestamp) {
  const View stamps = in.take("stamps");
  timestamp(stamps, in.integer("slot"));
}

// tensors..., scale, out
BOOST_EXT_GRAPH_OP(tensor_statistics) { read_and_call(in, kTensorStatistics, &tensor_statistics); }

// grads..., out...
BOOST_EXT_GRAPH_FUNCTION(centralized) { read_and_call<const Views&, const Views&>(in, kCentralize, &centralize); }

// grads..., weights..., clipping, eps, scale, out...: as new arrays, since weights may share one gradient
BOOST_EXT_GRAPH_FUNCTION(adaptive_clipped) {
  const std::int64_t n = in.length_of(3, 3);
  const Views grads = in.list("grads", n), weights = in.list("weights", n);
  const double clipping = in.real("clipping"), eps = in.real("eps"), scale = in.real("scale");
  const Views out = in.list("out", n);
  for (std::size_t i = 0; i < out.size(); ++i) {
    require(out[i].bytes() == grads[i].bytes(), in.op(), ": out[", i, "] must have ", grads[i].bytes(), " bytes, got ",
            out[i].bytes());
    if (out[i].size > 0) std::memcpy(out[i].data, grads[i].data, static_cast<std::size_t>(out[i].bytes()));
  }
  adaptive_clip(cpu_context(), out, weights, clipping, eps, scale);
}

// What an all-reduce needs of many gradients: tensors..., and one float32 vector out.
BOOST_EXT_GRAPH_FUNCTION(joined) {
  const Views parts = in.list("tensors", in.left() - 1);
  flatten(cpu_context(), parts, in.take("out", DType::f32, total_size(parts)));
}

// And back: factor, the vector, n tensors that say shapes and dtypes; factor times the vector in n tensors out.
BOOST_EXT_GRAPH_FUNCTION(parted) {
  const View factor = in.take("factor");
  const View vector = in.take("vector");
  const std::int64_t n = in.length_of(2);
  in.list("like", n);
  unflatten(cpu_context(), vector, factor, in.list("out", n));
}

// scale, counters, overflow, rule (3,): factor, window, max_scale
BOOST_EXT_GRAPH_OP(loss_scale_update) {
  const View scale = in.take("scale"), counters = in.take("counters");
  const bool overflow = in.flag("overflow");
  const auto& [factor, window, max_scale] = *in.data<const float[3]>("rule", DType::f32, 3);
  loss_scale_update(cpu_context(), scale, counters, Number{overflow ? 1.0 : 0.0, {}}, factor, window_of(window),
                    max_scale);
}

// groups, found (one for each scale), report, scales..., grads...; answers whether some group overflowed
BOOST_EXT_GRAPH_OP(group_unscale_and_check) {
  const View groups = in.take("groups"), found = in.take("found"), report = in.take("report");
  const Views scales = in.list("scales", found.size);
  in.answer(group_unscale_and_check(cpu_context(), in.rest("grads"), groups, scales, found, report));
}

// max_scale, overflows, found, scales...
BOOST_EXT_GRAPH_OP(group_loss_scale_update) {
  const auto max_scale = static_cast<double>(in.number("max_scale"));
  const View overflows = in.take("overflows"), found = in.take("found");
  group_loss_scale_update(in.rest("scales"), found, overflows, max_scale);
}

// B, s, gk_last, started, gk, scale, B_next, dk, slope (1,), eps
BOOST_EXT_GRAPH_OP(dim_reduce_direction) {
  const View B = in.take("B"), s = in.take("s"), gk_last = in.take("gk_last");
  const bool started = in.flag("started");
  const View gk = in.take("gk");
  const double inv_scale = inverse_scale_of(in);
  const View B_next = in.take("B_next"), dk = in.take("dk");
  auto* slope = in.written<float>("slope", DType::f32);
  double found = 0;
  dim_reduce_direction(cpu_context(), B, s, gk_last, started, gk, Number{inv_scale, {}}, B_next, dk, in.number("eps"),
                       view_of(found));
  *slope = static_cast<float>(found);
}

// step, save, weights..., saved..., dn...
BOOST_EXT_GRAPH_OP(dim_reduce_trial) {
  const View step = in.take("step");
  const bool save = in.flag("save");
  const std::int64_t n = in.length_of(3);
  const Views weights = in.list("weights", n), saved = in.list("saved", n);
  dim_reduce_trial(cpu_context(), weights, saved, in.list("dn", n), step, save);
}

// gamma, alpha, rho, scale, momentum..., grads..., grad_proj..., dn...; delta is written over grad_proj
BOOST_EXT_GRAPH_OP(dim_reduce_apply) {
  const double gamma = in.number("gamma"), alpha = in.number("alpha");
  const Number rho{in.number("rho"), {}}, inv_scale{inverse_scale_of(in), {}};
  const std::int64_t n = in.length_of(4);
  const Views momentum = in.list("momentum", n), grads = in.list("grads", n), proj = in.list("grad_proj", n);
  dim_reduce_apply(cpu_context(), momentum, grads, proj, in.list("dn", n), gamma, alpha, rho, inv_scale, proj, {}, 0);
}

// P, coordinates, origin (2, n), weights...
BOOST_EXT_GRAPH_OP(subspace_point) {
  const View P = in.take("P"), coordinates = in.take("coordinates"), origin = in.take("origin");
  subspace_point(cpu_context(), P, coordinates, origin, in.rest("weights"));
}

}  // namespace boost_ext
