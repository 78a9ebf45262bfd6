// The ops whose Python function and graph function both follow from their schemas: PLAIN_OP(function, schema).
#pragma once

#include "ops/adaptive_clip.h"
#include "ops/bfgs_update.h"
#include "ops/clip_by_global_norm.h"
#include "ops/dim_reduce.h"
#include "ops/ema_update.h"
#include "ops/loss_scale_update.h"
#include "ops/orthogonalize.h"
#include "ops/pca_project.h"
#include "ops/tensor_statistics.h"
#include "ops/unscale_and_check.h"

#define BOOST_EXT_PLAIN_OPS(PLAIN_OP)                 \
  PLAIN_OP(adaptive_clip, kAdaptiveClip)              \
  PLAIN_OP(bfgs_update, kBfgsUpdate)                  \
  PLAIN_OP(clip_by_global_norm, kClipByGlobalNorm)    \
  PLAIN_OP(dim_reduce_direction, kDimReduceDirection) \
  PLAIN_OP(dim_reduce_trial, kDimReduceTrial)         \
  PLAIN_OP(ema_update, kEmaUpdate)                    \
  PLAIN_OP(loss_scale_update, kLossScaleUpdate)       \
  PLAIN_OP(orthogonalize, kOrthogonalize)             \
  PLAIN_OP(pca_project, kPcaProject)                  \
  PLAIN_OP(tensor_statistics, kTensorStatistics)      \
  PLAIN_OP(unscale_and_check, kUnscaleAndCheck)
