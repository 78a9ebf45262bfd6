// The call of optimizer_step that MindSpore makes: one flat list of arrays, numbers included.
#pragma once

#include <string>
#include <vector>

#include "ops/tensor.h"

namespace boost_ext {

// In this order, n tensors in g groups (same learning rate, decay and centralization), k states:
//   layout    int32 (7 + 4 n,): rule (its place in packed_rules), g, k, whether there are powers, whether there is
//             `first`, n, seed; then for each tensor its group, whether it is centralized, has a master, and may have
//             a gradient of some rows only
//   hyper     float64: those of the rule, and the optimizer's own loss scale, which its decays are multiplied with
//   skip      bool (1,): if true, nothing is written at all
//   scale     float32 (1,): gradients are divided by scale * own loss scale
//   step      int32 (1,), written: steps made so far
//   ratio     float32 (1,), a factor on all gradients; or (2 n,), on each gradient and on each weight decay (lars), and
//             whatever follows, for optimizers over more of the parameters
//   lr        g of float32; decay: g of float32
//   powers    beta1^t and beta2^t, float32, written: for checkpoints, nothing is computed with them. Of sgd and
//             momentum the momentum, float32, read: it takes the place of the one in hyper
//   weights   n; masters: as many as the layout says; grads: n, of their shapes; state: k n
//   scales    of the uint8 tensors of the states, in their order
//   first     n of float32, of any size, written: not 0 in the first step of a tensor, which its first element says
//   indices   int32, for each tensor whose gradient may hold some rows only: which ones; of shape () if it is whole
//
// Adafactor's state are R and C of each tensor of two axes and more and V of each other one, and if k is 1 then n first
// moments; nothing is listed that a tensor does not have. Its hyper: eps1, eps2, clip_threshold, decay_rate, beta1,
// scale_parameter, relative_step, warmup_init. ratio is one 1; powers one array: the number of this step, written.
std::vector<std::string> packed_rules();  // those of optimizer_step, then adafactor

// The call of lars, for the same optimizer: layout, hyper, lars (float64: coefficient, epsilon, clip), apply (int32,
// one a tensor), scale, lr and decay of each group, ratios as above, weights, grads.

}  // namespace boost_ext
