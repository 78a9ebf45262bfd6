// The ops whose Python function and graph function both follow from their schemas: PLAIN_OP(function, schema).
#pragma once

#include "ops/adaptive_clip.h"
#include "ops/bfgs_update.h"
#include "ops/ema_update.h"
#include "ops/orthogonalize.h"

#define BOOST_EXT_PLAIN_OPS(PLAIN_OP)    \
  PLAIN_OP(adaptive_clip, kAdaptiveClip) \
  PLAIN_OP(bfgs_update, kBfgsUpdate)     \
  PLAIN_OP(ema_update, kEmaUpdate)       \
  PLAIN_OP(orthogonalize, kOrthogonalize)
