// The ops inside MindSpore, each with its arguments as a flat list (doors/graph_from_schema.h). What an op produces it
// writes into its inputs, which the primitive declares (boost_ext.ms.native); its one output, of shape (1,), is a bool.
#include "doors/graph_from_schema.h"
#include "doors/plain_ops.h"
#include "ops/accumulate.h"
#include "ops/batch_norm.h"
#include "ops/centralize.h"
#include "ops/conv2d.h"
#include "ops/covariance.h"
#include "ops/cross_entropy.h"
#include "ops/damped_inverse.h"
#include "ops/dropout.h"
#include "ops/gelu.h"
#include "ops/group_loss_scale.h"
#include "ops/layer_norm.h"
#include "ops/matmul.h"
#include "ops/max_pool.h"
#include "ops/pca_back_project.h"
#include "ops/precondition.h"
#include "ops/row_sum.h"
#include "ops/softmax.h"
#include "ops/strided_copy.h"
#include "ops/timestamp.h"

namespace boost_ext {

#define BOOST_EXT_GRAPH_OF(op, schema) BOOST_EXT_GRAPH_OP_OF(op, schema, op)
BOOST_EXT_PLAIN_OPS(BOOST_EXT_GRAPH_OF)

BOOST_EXT_GRAPH_OP_OF(accumulate, kAccumulateMean, accumulate_mean)
BOOST_EXT_GRAPH_OP_OF(check_and_clip, kCheckAndClip, check_and_clip)
BOOST_EXT_GRAPH_OP_OF(check_report, kCheckGradients, check_gradients)
BOOST_EXT_GRAPH_OP_OF(covariance, kLayerCovariances, layer_covariances)
BOOST_EXT_GRAPH_OP_OF(damped_inverse, kLayerInverses, layer_inverses)
BOOST_EXT_GRAPH_OP_OF(dim_reduce_apply, kDimReduceResidual, dim_reduce_residual)
BOOST_EXT_GRAPH_OP_OF(group_loss_scale_update, kGroupLossScaleUpdate, group_loss_scale_update)
BOOST_EXT_GRAPH_OP_OF(group_unscale_and_check, kGroupUnscaleAndCheck, group_unscale_and_check)
BOOST_EXT_GRAPH_OP_OF(pca_back_project, kPcaBackProjectTwo, pca_back_project_two)
BOOST_EXT_GRAPH_OP_OF(subspace_point, kSubspacePoint, subspace_point)
BOOST_EXT_GRAPH_OP_OF(timestamp, kTimestamp, timestamp)
BOOST_EXT_GRAPH_OP_OF(unscale_and_check_report, kUnscaleAndCheck, unscale_and_check)

BOOST_EXT_GRAPH_FUNCTION_OF(adaptive_clipped, kAdaptiveClipped, adaptive_clipped)
BOOST_EXT_GRAPH_FUNCTION_OF(batch_norm, kBatchNorm, batch_norm)  // writes the moving statistics, too
BOOST_EXT_GRAPH_FUNCTION_OF(batch_norm_gradient, kBatchNormGradient, batch_norm_gradient)
BOOST_EXT_GRAPH_FUNCTION_OF(centralized, kCentralize, centralize)
BOOST_EXT_GRAPH_FUNCTION_OF(conv2d, kConv2d, conv2d)
BOOST_EXT_GRAPH_FUNCTION_OF(conv2d_input_gradient, kConv2dInputGradient, conv2d_input_gradient)
BOOST_EXT_GRAPH_FUNCTION_OF(conv2d_weight_gradient, kConv2dWeightGradient, conv2d_weight_gradient)
BOOST_EXT_GRAPH_FUNCTION_OF(cross_entropy, kCrossEntropy, cross_entropy)
BOOST_EXT_GRAPH_FUNCTION_OF(cross_entropy_gradient, kCrossEntropyGradient, cross_entropy_gradient)
BOOST_EXT_GRAPH_FUNCTION_OF(dropout, kDropoutOfKey, dropout_of_key)
BOOST_EXT_GRAPH_FUNCTION_OF(dropout_key, kDropoutKey, dropout_key)  // writes its input, too
BOOST_EXT_GRAPH_FUNCTION_OF(gelu, kGelu, gelu)
BOOST_EXT_GRAPH_FUNCTION_OF(gelu_gradient, kGeluGradient, gelu_gradient)
BOOST_EXT_GRAPH_FUNCTION_OF(joined, kFlatten, flatten)
BOOST_EXT_GRAPH_FUNCTION_OF(layer_norm, kLayerNorm, layer_norm)
BOOST_EXT_GRAPH_FUNCTION_OF(layer_norm_gradient, kLayerNormGradient, layer_norm_gradient)
BOOST_EXT_GRAPH_FUNCTION_OF(matmul, kMatmul, matmul)
BOOST_EXT_GRAPH_FUNCTION_OF(max_pool, kMaxPool, max_pool)
BOOST_EXT_GRAPH_FUNCTION_OF(max_pool_gradient, kMaxPoolGradient, max_pool_gradient)
BOOST_EXT_GRAPH_FUNCTION_OF(parted, kUnflatten, unflatten)
BOOST_EXT_GRAPH_FUNCTION_OF(row_sum, kRowSum, row_sum)
BOOST_EXT_GRAPH_FUNCTION_OF(softmax, kSoftmax, softmax)
BOOST_EXT_GRAPH_FUNCTION_OF(softmax_gradient, kSoftmaxGradient, softmax_gradient)

// x, the shape of what is written, the strides in x of its axes, out: by hand, since a View has no strides.
BOOST_EXT_GRAPH_FUNCTION(strided_copy) {
  const View& x = in.take("x");
  StridedCopy copy{item_size(x.dtype), in.integers("shape"), in.integers("strides")};
  const View& out = in.take("out");
  in.require_end();
  require(copy.shape.size() == copy.strides.size(), in.op(), ": shape and strides must have one length, got ",
          copy.shape.size(), " and ", copy.strides.size());
  std::int64_t size = 1, last = 0;
  for (std::size_t axis = 0; axis < copy.shape.size(); ++axis) {
    size *= copy.shape[axis];
    last += (copy.shape[axis] - 1) * copy.strides[axis];
  }
  require(copy.item > 0 && out.dtype == x.dtype, in.op(), ": out must have the dtype of x");
  require_size(in.op(), "out", out, size);
  require(size == 0 || (last >= 0 && last < x.size), in.op(), ": strides must stay within x");
  strided_copy(cpu_context(), x.data, copy, out.data);
}

// scale, A^-1..., G^-1..., layout, grads..., out...: by hand, since two pairs of lists have lengths of their own, and
// MindSpore finds the gradients by the layout before them.
BOOST_EXT_GRAPH_FUNCTION(precondition) {
  const double inv_scale = inverse_scale(in.number("scale"));
  const std::int64_t layers = in.until(DType::i32) / 2;
  const Views A = in.list("A", layers), G = in.list("G", layers);
  const View layout = in.take("layout", DType::i32, -1);
  const Views grads = in.list("grads", layout.size), out = in.list("out", layout.size);
  in.require_end();
  precondition_layers(cpu_context(), inv_scale, A, G, layout, grads, out);
}

}  // namespace boost_ext
