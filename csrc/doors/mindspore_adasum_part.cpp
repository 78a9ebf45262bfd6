// The adaptive sum over ranks inside MindSpore: see mindspore.cpp.
#include "doors/graph.h"
#include "ops/adasum_part.h"

namespace boost_ext {
namespace {

// The MindSpore side has no collective for bfloat16 on the CPU: such elements travel as float16, bits unchanged.
View as_stored(View v, std::int64_t holds_bf16) {
  if (holds_bf16 != 0 && v.dtype == DType::f16) v.dtype = DType::bf16;
  return v;
}

// What adasum_part_dots and adasum_part_combine get first: whether it is bfloat16, which part, the sizes.
struct PartPlan {
  explicit PartPlan(Reader& in) : numbers(in.integers("plan")) {
    require(numbers.size() > 2, in.op(), ": plan must hold at least one size");
    sizes.assign(numbers.begin() + 2, numbers.end());
  }
  View take(Reader& in, const char* arg) const { return as_stored(in.take(arg), numbers[0]); }
  std::vector<std::int64_t> numbers;
  Sizes sizes;
};

// The last tensors, which stand beside those of a list of n with these numbers.
Views beside(Reader& in, std::int64_t n, const std::int64_t* numbers, std::int64_t count) {
  Views views(static_cast<std::size_t>(n));
  for (View& v : views) v.size = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    require(0 <= numbers[i] && numbers[i] < n, in.op(), ": plan must hold numbers below ", n, ", got ", numbers[i]);
    views[static_cast<std::size_t>(numbers[i])] = in.take("halves");
  }
  return views;
}

// The length of two lists before the last `count` tensors.
std::int64_t half_of(const Reader& in, std::int64_t count) {
  const std::int64_t lists = in.left() - count;
  require(lists > 0 && lists % 2 == 0, in.op(), ": must get two lists of one length, got ", lists, " tensors");
  return lists / 2;
}

}  // namespace

// plan, a, b, dots out
BOOST_EXT_GRAPH_FUNCTION(adasum_part_dots) {
  const PartPlan plan(in);
  const View a = plan.take(in, "a"), b = plan.take(in, "b");
  adasum_part_dots(cpu_context(), a, b, plan.sizes, plan.numbers[1], in.take("dots"));
}

// plan, a, b, dots, the combination out
BOOST_EXT_GRAPH_FUNCTION(adasum_part_combine) {
  const PartPlan plan(in);
  const View a = plan.take(in, "a"), b = plan.take(in, "b"), dots = in.take("dots");
  adasum_part_combine(cpu_context(), a, b, plan.sizes, plan.numbers[1], dots, plan.take(in, "out"));
}

// plan: whether it is bfloat16; vector, tensors...
BOOST_EXT_GRAPH_OP(adasum_part_pack) {
  const std::int64_t holds_bf16 = in.integers("plan").at(0);
  const View vector = as_stored(in.take("vector"), holds_bf16);
  adasum_part_pack(in.rest("tensors"), vector);
}

// plan: whether it is bfloat16; vector, a..., b...
BOOST_EXT_GRAPH_OP(adasum_part_pack_difference) {
  const std::int64_t holds_bf16 = in.integers("plan").at(0);
  const View vector = as_stored(in.take("vector"), holds_bf16);
  const std::int64_t n = in.length_of(2);
  const Views a = in.list("a", n);
  adasum_part_pack_difference(cpu_context(), a, in.list("b", n), vector);
}

// plan: 0, and which weights have halves; weights..., out..., halves...
BOOST_EXT_GRAPH_OP(adasum_part_keep) {
  const std::vector<std::int64_t> plan = in.integers("plan");
  const std::int64_t count = static_cast<std::int64_t>(plan.size()) - 1, n = half_of(in, count);
  const Views weights = in.list("weights", n), out = in.list("out", n);
  adasum_part_keep(cpu_context(), weights, beside(in, n, plan.data() + 1, count), out);
}

// plan: whether it is bfloat16, how many parts, the parts, which weights have halves; vector, old..., weights...,
// halves...
BOOST_EXT_GRAPH_OP(adasum_part_apply) {
  const std::vector<std::int64_t> plan = in.integers("plan");
  const View vector = as_stored(in.take("vector"), plan.at(0));
  const std::int64_t parts = plan.at(1);
  require(0 < parts && 2 + parts <= static_cast<std::int64_t>(plan.size()), in.op(), ": plan must hold ", parts,
          " parts");
  const std::int64_t count = static_cast<std::int64_t>(plan.size()) - 2 - parts, n = half_of(in, count);
  const Views old = in.list("old", n), weights = in.list("weights", n);
  adasum_part_apply(cpu_context(), vector, {plan.begin() + 2, plan.begin() + 2 + parts}, old, weights,
                    beside(in, n, plan.data() + 2 + parts, count));
}

}  // namespace boost_ext
