// The graph-mode door of adasum_part: see mindspore.cpp.
#include "doors/graph.h"
#include "ops/adasum_part.h"

namespace {

using namespace boost_ext;

// The MindSpore side has no collective for bfloat16 on the CPU: such elements travel as float16, bits unchanged.
View as_stored(View v, std::int64_t holds_bf16) {
  if (holds_bf16 != 0 && v.dtype == DType::f16) v.dtype = DType::bf16;
  return v;
}

// What adasum_part_dots and adasum_part_combine get first: whether it is bfloat16, which part, the sizes.
struct PartPlan {
  explicit PartPlan(Params& p) : numbers(p.integers()) {
    require(numbers.size() > 2, "adasum_part", ": plan must hold at least one size");
    sizes.assign(numbers.begin() + 2, numbers.end());
  }
  View take(Params& p) const { return as_stored(p.take(), numbers[0]); }
  std::vector<std::int64_t> numbers;
  Sizes sizes;
};

// plan, a, b -> dots. Functions without a write: MindSpore allocates the output, and there is no bool at the end.
extern "C" __attribute__((visibility("default"))) int boost_ext_adasum_part_dots(int nparam, void** params, int* ndims,
                                                                                 int64_t** shapes, const char** dtypes,
                                                                                 void*, void*) {
  return guarded([&] {
    Params p("adasum_part_dots", nparam + 1, params, ndims, shapes, dtypes);
    const PartPlan plan(p);
    const View a = plan.take(p), b = plan.take(p);
    adasum_part_dots(cpu_context(), a, b, plan.sizes, plan.numbers[1], p.take());
  });
}

// plan, a, b, dots -> the combination
extern "C" __attribute__((visibility("default"))) int boost_ext_adasum_part_combine(int nparam, void** params,
                                                                                    int* ndims, int64_t** shapes,
                                                                                    const char** dtypes, void*, void*) {
  return guarded([&] {
    Params p("adasum_part_combine", nparam + 1, params, ndims, shapes, dtypes);
    const PartPlan plan(p);
    const View a = plan.take(p), b = plan.take(p), dots = p.take();
    adasum_part_combine(cpu_context(), a, b, plan.sizes, plan.numbers[1], dots, plan.take(p));
  });
}

// plan: whether it is bfloat16; vector, tensors...
BOOST_EXT_GRAPH_OP(adasum_part_pack) {
  const std::int64_t holds_bf16 = p.integers().at(0);
  const View vector = as_stored(p.take(), holds_bf16);
  adasum_part_pack(p.list(p.left()), vector);
}

// plan: whether it is bfloat16; vector, a..., b...
BOOST_EXT_GRAPH_OP(adasum_part_pack_difference) {
  const std::int64_t holds_bf16 = p.integers().at(0);
  const View vector = as_stored(p.take(), holds_bf16);
  const int n = p.split(2);
  const Views a = p.list(n);
  adasum_part_pack_difference(cpu_context(), a, p.list(n), vector);
}

// The last tensors, which stand beside those of a list of n with these numbers.
Views beside(Params& p, int n, const std::int64_t* numbers, int count) {
  Views views(static_cast<std::size_t>(n));
  for (View& v : views) v.size = 0;
  for (int i = 0; i < count; ++i) {
    require(0 <= numbers[i] && numbers[i] < n, "adasum_part: plan must hold numbers below ", n, ", got ", numbers[i]);
    views[static_cast<std::size_t>(numbers[i])] = p.take();
  }
  return views;
}

int half_of(const Params& p, int count) {
  const int lists = p.left() - count;
  require(lists > 0 && lists % 2 == 0, "adasum_part: must get two lists of one length, got ", lists, " tensors");
  return lists / 2;
}

// plan: 0, and which weights have halves; weights..., out..., halves...
BOOST_EXT_GRAPH_OP(adasum_part_keep) {
  const std::vector<std::int64_t> plan = p.integers();
  const int count = static_cast<int>(plan.size()) - 1, n = half_of(p, count);
  const Views weights = p.list(n), out = p.list(n);
  adasum_part_keep(cpu_context(), weights, beside(p, n, plan.data() + 1, count), out);
}

// plan: whether it is bfloat16, how many parts, the parts, which weights have halves; vector, old..., weights...,
// halves...
BOOST_EXT_GRAPH_OP(adasum_part_apply) {
  const std::vector<std::int64_t> plan = p.integers();
  const View vector = as_stored(p.take(), plan.at(0));
  const std::int64_t parts = plan.at(1);
  require(0 < parts && 2 + parts <= static_cast<std::int64_t>(plan.size()), "adasum_part_apply", ": plan must hold ",
          parts, " parts");
  const int count = static_cast<int>(static_cast<std::int64_t>(plan.size()) - 2 - parts), n = half_of(p, count);
  const Views old = p.list(n), weights = p.list(n);
  adasum_part_apply(cpu_context(), vector, {plan.begin() + 2, plan.begin() + 2 + parts}, old, weights,
                    beside(p, n, plan.data() + 2 + parts, count));
}

}  // namespace
