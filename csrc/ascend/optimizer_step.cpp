#include "ops/optimizer_step.h"

#include "ascend/call.h"

namespace boost_ext::ascend {
namespace {

std::int32_t number_of(Rule rule) {  // StepRule of kernels/ascend/tiling.h
  return rule == Rule::momentum ? 0 : rule == Rule::adam ? 1 : rule == Rule::adam_weight_decay ? 2 : -1;
}

// What the kernels lack beside those of the CPU. Nothing is enqueued before.
void require_supported(const RuleFacts& rule, std::int32_t number, const OptimizerStep& s) {
  if (number < 0) throw std::runtime_error(text(rule.op, ": got Ascend arrays, but this op has no Ascend kernel"));
  require(s.states == rule.min_states, rule.op, ": ", rule.state[rule.min_states],
          " must be left out on Ascend, got one (AMSGrad)");
  require(s.settings.hyper[hyper_count(rule) - 1] == 0, rule.op, ": cautious must be False on Ascend, got True");
  for (std::int64_t i = 0; i < s.weights.count; ++i) {
    const bool with_master = s.narrow[i].data != nullptr;
    if (is_residual(s.narrow[i])) {
      throw TypeError(
          text(rule.op, ": ", Name("masters", i), " must be float32 on Ascend, got ", dtype_name(s.narrow[i])));
    }
    require_same_dtype(rule.op, {"grads", i}, s.grads[i], "the parameter",
                       (with_master ? s.narrow : s.weights)[i].dtype);
    require(!s.centralize[i], rule.op,
            ": centralize must be False on Ascend, whose kernels form no means, got True for ", Name("params", i));
    for (int k = 0; k < s.states; ++k) {
      const View& v = s.state[k][static_cast<std::size_t>(i)];
      if (v.dtype != DType::f32) {
        throw TypeError(text(rule.op, ": ", Name(rule.state[k], i), " must be float32 on Ascend, got ", dtype_name(v)));
      }
    }
  }
}

}  // namespace

void optimizer_step(const Context& context, Rule rule, const OptimizerStep& s) {
  const RuleFacts& known = facts(rule);
  const std::int32_t number = number_of(rule);
  require_supported(known, number, s);
  const Call call(known.op, context);
  for (const bool with_master : {false, true}) {
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      std::vector<boost_ext_ascend_step> tensors;
      for (std::int64_t i = 0; i < s.weights.count; ++i) {
        const View& weight = (with_master ? s.narrow : s.weights)[i];
        if ((s.narrow[i].data != nullptr) != with_master || weight.dtype != dtype) continue;
        void* state[kMaxStates] = {};
        for (int k = 0; k < s.states; ++k) state[k] = call.at(s.state[k][static_cast<std::size_t>(i)]);
        tensors.push_back({call.at(weight), with_master ? call.at(s.weights[i]) : nullptr, call.at(s.grads[i]),
                           state[0], state[1], weight.size, s.scale[i], s.l2[i], s.lr[i], s.decay[i]});
      }
      const auto run = BOOST_EXT_ASCEND_BY_DTYPE(optimizer_step_list, dtype);
      const auto count = static_cast<std::int64_t>(tensors.size());
      call.check(run(number, tensors.data(), count, s.settings.hyper, s.settings.step, call.stream()), "params");
    }
  }
}

}  // namespace boost_ext::ascend
