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

// tensors..., out...
BOOST_EXT_GRAPH_OP(adasum_part_copy) {
  const int n = p.split(2);
  const Views tensors = p.list(n);
  adasum_part_copy(tensors, p.list(n));
}

// plan: whether it is bfloat16, and the parts; vector, old..., weights...
BOOST_EXT_GRAPH_OP(adasum_part_apply) {
  const std::vector<std::int64_t> plan = p.integers();
  const View vector = as_stored(p.take(), plan.at(0));
  const int n = p.split(2);
  const Views old = p.list(n);
  adasum_part_apply(cpu_context(), vector, {plan.begin() + 1, plan.end()}, old, p.list(n));
}

}  // namespace
