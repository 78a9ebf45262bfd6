// The adaptive sum over ranks inside MindSpore: see mindspore.cpp.
#include "doors/graph.h"
#include "ops/adasum_part.h"

namespace boost_ext {
namespace {

// The numbers of `plan`, one by one; of each call the first says whether it is bfloat16. MindSpore has no collective
// for that on the CPU: such elements travel as float16, bits unchanged.
struct Plan {
  Reader& in;
  std::vector<std::int64_t> left = in.integers("plan");
  bool holds_bf16 = next() != 0;

  explicit Plan(Reader& in) : in(in) {}
  std::int64_t next() {
    require(!left.empty(), in.op(), ": plan must hold more numbers, got none");
    const std::int64_t number = left.front();
    left.erase(left.begin());
    return number;
  }
  View take(const char* arg) const {
    View v = in.take(arg);
    if (holds_bf16 && v.dtype == DType::f16) v.dtype = DType::bf16;
    return v;
  }
};

// What adasum_part_dots and adasum_part_combine get first: which part, and the sizes, which are left.
struct PartPlan : Plan {
  std::int64_t index;
  explicit PartPlan(Reader& in) : Plan(in) {
    require(left.size() > 1, in.op(), ": plan must hold at least one size");
    index = next();
  }
};

// The last tensors, which stand beside those of a list of n with these numbers.
Views beside(Reader& in, std::int64_t n, const std::vector<std::int64_t>& numbers) {
  Views views(static_cast<std::size_t>(n));
  for (View& v : views) v.size = 0;
  for (const std::int64_t number : numbers) {
    require(0 <= number && number < n, in.op(), ": plan must hold numbers below ", n, ", got ", number);
    views[static_cast<std::size_t>(number)] = in.take("halves");
  }
  return views;
}

// The length of two lists before the last tensors, as many as there are numbers.
std::int64_t half_of(const Reader& in, const std::vector<std::int64_t>& numbers) {
  const std::int64_t lists = in.left() - static_cast<std::int64_t>(numbers.size());
  require(lists > 0 && lists % 2 == 0, in.op(), ": must get two lists of one length, got ", lists, " tensors");
  return lists / 2;
}

}  // namespace

// plan, a, b, dots out
BOOST_EXT_GRAPH_FUNCTION(adasum_part_dots) {
  const PartPlan plan(in);
  const View a = plan.take("a"), b = plan.take("b");
  adasum_part_dots(cpu_context(), a, b, plan.left, plan.index, in.take("dots"));
}

// plan, a, b, dots, the combination out
BOOST_EXT_GRAPH_FUNCTION(adasum_part_combine) {
  const PartPlan plan(in);
  const View a = plan.take("a"), b = plan.take("b"), dots = in.take("dots");
  adasum_part_combine(cpu_context(), a, b, plan.left, plan.index, dots, plan.take("out"));
}

// plan: whether it is bfloat16; vector, tensors...
BOOST_EXT_GRAPH_OP(adasum_part_pack) {
  const View vector = Plan(in).take("vector");
  adasum_part_pack(in.rest("tensors"), vector);
}

// plan: whether it is bfloat16; vector, a..., b...
BOOST_EXT_GRAPH_OP(adasum_part_pack_difference) {
  const View vector = Plan(in).take("vector");
  const std::int64_t n = in.length_of(2);
  const Views a = in.list("a", n);
  adasum_part_pack_difference(cpu_context(), a, in.list("b", n), vector);
}

// plan: 0, and which weights have halves; weights..., out..., halves...
BOOST_EXT_GRAPH_OP(adasum_part_keep) {
  const Plan plan(in);
  const std::int64_t n = half_of(in, plan.left);
  const Views weights = in.list("weights", n), out = in.list("out", n);
  adasum_part_keep(cpu_context(), weights, beside(in, n, plan.left), out);
}

// plan: whether it is bfloat16, how many parts, the parts, which weights have halves; vector, old..., weights...,
// halves...
BOOST_EXT_GRAPH_OP(adasum_part_apply) {
  Plan plan(in);
  const View vector = plan.take("vector");
  const std::int64_t count = plan.next();
  require(0 < count && count <= static_cast<std::int64_t>(plan.left.size()), in.op(), ": plan must hold ", count,
          " parts");
  const std::vector<std::int64_t> parts(plan.left.begin(), plan.left.begin() + count);
  const std::vector<std::int64_t> halves(plan.left.begin() + count, plan.left.end());
  const std::int64_t n = half_of(in, halves);
  const Views old = in.list("old", n), weights = in.list("weights", n);
  adasum_part_apply(cpu_context(), vector, parts, old, weights, beside(in, n, halves));
}

}  // namespace boost_ext
