// The calls of optimizer_step and lars that MindSpore makes: their arrays, and how they are read.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "doors/reader.h"
#include "ops/optimizer_step.h"
#include "ops/unscale_and_check.h"

namespace boost_ext {

// optimizer_step, in this order, with n tensors in g groups (same learning rate, decay and centralization), k states:
//   layout    int32 (7 + 4 n,): rule (its place in layout_rules), g, k, whether there are powers, whether there is
//             `first`, n, seed; then for each tensor its group, whether it is centralized, has a master, and `special`:
//             may have a gradient of some rows only; of Muon, is stepped as a matrix; of Apollo and GaLore
//             the same, as the number of the tensor, from 1 on
//   hyper     float64: those of the rule, and the optimizer's own loss scale, which its decays are multiplied with
//   skip      bool (1,): if true, nothing is written at all
//   scale     float32 (1,): gradients are divided by scale * own loss scale
//   step      int32 (1,), written: steps made so far
//   ratio     float32 (1,), a factor on all gradients; or (2 n,), on each gradient and on each weight decay (lars), and
//             whatever follows, for optimizers over more of the parameters
//   lr        g of float32; decay: g of float32
//   powers    beta1^t and beta2^t, float32, written: for checkpoints, nothing is computed with them. Of sgd and
//             momentum the momentum, float32, read: it takes the place of the one in hyper. Of Schedule-Free lr_max and
//             weight_sum, float64, written, and train_mode, bool, which must be true
//   weights   n; masters: as many as the layout says, with residuals of 8 bits as uint8: MindSpore casts int8 to int16
//             when it loads a checkpoint, and refuses uint8; grads: n, of their shapes; state: k n
//   scales    of the uint8 tensors of the states, in their order
//   first     n of float32, of any size, written: not 0 in the first step of a tensor, which its first element says
//   indices   int32, for each tensor whose gradient may hold some rows only: which ones; of shape () if it is whole
//
// The hyper of Schedule-Free: warmup_steps, r and weight_lr_power, and those of the rule but averaging_weight, which
// these make. All groups have the same: that of the largest learning rate.
//
// Adafactor's state are R and C of each tensor of two axes and more and V of each other one, and if k is 1 then n first
// moments; nothing is listed that a tensor does not have. Its hyper: eps1, eps2, clip_threshold, decay_rate, beta1,
// scale_parameter, relative_step, warmup_init. ratio is one 1; powers one array: the number of this step, written.
//
// Muon's state are n moments, and then the second moments of the tensors that are no matrices. Its hyper: momentum,
// nesterov, iterations, eps, match_rms, and AdamW's beta1, beta2, eps. ratio is one 1.
//
// Apollo's state are n first moments, n second moments, and then the norms of the matrices. Its hyper: tensor_wise,
// factor, limit, update_gap, beta1, beta2, eps. ratio is one number. GaLore's are the same with the bases of the
// matrices instead of their norms; its hyper: factor, update_gap, beta1, beta2, eps.
//
// lars, for the same optimizer: layout, hyper, lars (float64: coefficient, epsilon, clip), apply (int32,
// one a tensor), scale, lr and decay of each group, ratios as above, weights, grads.

std::vector<std::string> layout_rules();  // those of optimizer_step, then adafactor, muon, apollo and galore

// The numbers of `layout`: of the whole step, then of each tensor.
struct StepNumbers {
  std::int32_t rule, groups, states, has_powers, has_first, count, seed;
};
struct TensorNumbers {
  std::int32_t group, is_centralized, has_master, special;
};
struct StepLayout : StepNumbers {
  std::vector<TensorNumbers> tensors;

  explicit StepLayout(Reader& in) {
    const View& v = in.take("layout", DType::i32, -1);
    constexpr std::int64_t whole = sizeof(StepNumbers) / sizeof(std::int32_t);
    constexpr std::int64_t each = sizeof(TensorNumbers) / sizeof(std::int32_t);
    const auto* numbers = static_cast<const std::int32_t*>(v.data);
    if (v.size > whole) std::memcpy(static_cast<StepNumbers*>(this), numbers, sizeof(StepNumbers));
    require(v.size > whole && v.size == whole + each * count, in.op(), ": layout must fit its tensors, got ", v.size,
            " numbers");
    const auto require_number = [&](std::int32_t number, const char* what, std::int64_t last) {
      require(number >= 0 && number <= last, in.op(), ": layout must hold a number of ", what, " from 0 to ", last,
              ", got ", number);
    };
    require_number(rule, "rule", static_cast<std::int64_t>(rule_names().size()) + 3);  // the last one is galore
    require_number(groups, "groups", in.left() + 1);
    require_number(states, "states", kMaxStates);
    tensors.resize(static_cast<std::size_t>(count));
    std::memcpy(tensors.data(), numbers + whole, tensors.size() * sizeof(TensorNumbers));
  }
};

// One float32 of each group, times a factor, and which of them is tensor i's.
struct GroupNumbers {
  std::vector<float> values;
  GroupNumbers() = default;
  GroupNumbers(Reader& in, const char* arg, std::int32_t groups, double factor) {
    for (std::int32_t g = 0; g < groups; ++g) values.push_back(static_cast<float>(factor * in.number(arg)));
  }
  float of(const char* op, const TensorNumbers& tensor) const {
    require(tensor.group >= 0 && static_cast<std::size_t>(tensor.group) < values.size(), op,
            ": layout must name one of ", values.size(), " groups, got ", tensor.group);
    return values[static_cast<std::size_t>(tensor.group)];
  }
};

inline std::string shape_text(const View& v) {
  if (v.ndim < 2) return v.ndim == 0 ? "()" : text("(", v.rows, ",)");
  if (v.ndim == 2) return text("(", v.rows, ", ", v.width, ")");
  return text("(", v.rows, v.ndim > 3 ? ", ..., " : ", ", v.height, ", ", v.width, ")");
}

// Of the same size, gradients have the same shape, too: as far as views know it, all of up to four axes. Those with
// `indices` hold some rows only. The op says where sizes differ.
inline void require_shapes(const char* op, const Views& grads, const Views& weights, const Views& indices = {}) {
  for (std::size_t i = 0; i < grads.size(); ++i) {
    const View &g = grads[i], &w = weights[i];
    if (g.size != w.size || (!indices.empty() && indices[i].ndim > 0)) continue;
    if (g.ndim == w.ndim && g.rows == w.rows && g.height == w.height && g.width == w.width) continue;
    throw std::invalid_argument(
        text(op, ": grads[", i, "] must have the shape of its weight, ", shape_text(w), ", got ", shape_text(g)));
  }
}

// What optimizer_step begins with for every rule, up to the numbers of the groups.
struct StepHead {
  StepLayout layout;
  const View& hyper;  // the last one is own_scale
  double own_scale;
  bool skip;
  double scale = 1;  // 1 / all loss scales
  std::int32_t* step = nullptr;
  const View* ratio = nullptr;
  GroupNumbers lr, decay;

  explicit StepHead(Reader& in)
      : layout(in),
        hyper(in.at_least("hyper", DType::f64, 1)),
        own_scale(numbers()[hyper.size - 1]),
        skip(in.flag("skip")) {
    if (skip) return;
    scale = inverse_scale(in.number("scale"), own_scale);
    step = in.written<std::int32_t>("step", DType::i32);
    ratio = &in.take("ratio", DType::f32, -1);
    lr = {in, "lr", layout.groups, 1};
    decay = {in, "weight_decay", layout.groups, inverse_scale(own_scale)};
  }
  const double* numbers() const { return static_cast<const double*>(hyper.data); }
  // The next arrays, as many as there are half weights; in a list of all weights, empty beside the others.
  Views masters(Reader& in) const {
    View none;
    none.size = 0;
    Views all;
    bool some = false;
    for (const TensorNumbers& tensor : layout.tensors) {
      all.push_back(tensor.has_master != 0 ? in.take("masters") : none);
      if (all.back().dtype == DType::u8) all.back().dtype = DType::i8;
      some = some || tensor.has_master != 0;
    }
    return some ? all : Views();
  }
};

// optimizer_step, from there on, for Adafactor, Muon, Apollo and GaLore.
void adafactor_step(Reader& in, const StepHead& head);
void muon_step(Reader& in, const StepHead& head);
void apollo_step(Reader& in, const StepHead& head);
void galore_step(Reader& in, const StepHead& head);

}  // namespace boost_ext
