// The host's part: how work is divided, what a workspace holds, and the numbers of a step.
#include <type_traits>

#include "native/harness.h"
#include "tiling.h"

namespace native {

using namespace boost_ext::ascend;

// CANN takes plain data as an argument of a kernel, and nothing else.
template <class T> constexpr bool kPlain = std::is_trivial_v<T> && std::is_standard_layout_v<T>;
static_assert(kPlain<StepTable> && kPlain<UnscaleTable>);

void test_tiling() {
  const std::int64_t huge = (std::int64_t{1} << 33) + 5;
  for (const std::int64_t n : {std::int64_t{0}, std::int64_t{1}, std::int64_t{2047}, std::int64_t{2048},
                               std::int64_t{2049}, std::int64_t{1023}, std::int64_t{70001}, huge}) {
    for (const std::int32_t cores : {1, 2, 3, 7, 40, 48}) {
      const Split s = split(n, cores);
      CHECK(s.n == n && s.per_core % kPart == 0 && s.per_core >= kPart);
      CHECK(s.cores >= (n > 0 ? 1 : 0) && s.cores <= cores);
      CHECK(s.cores * s.per_core >= n);                               // all of it is done
      CHECK(n == 0 ? s.cores == 0 : (s.cores - 1) * s.per_core < n);  // and nobody has nothing to do
    }
  }
  // Tensors of one launch begin behind one another, around all cores.
  UnscaleTable table{};
  for (const std::int64_t n : {std::int64_t{5000}, std::int64_t{1}, std::int64_t{1}, std::int64_t{9000}}) {
    table.tensors[table.count++].n = n;
  }
  CHECK(share(table, 4) == 4);
  CHECK(table.tensors[0].first == 0 && table.tensors[1].first == 3 && table.tensors[2].first == 0);
  CHECK(table.tensors[3].first == 1 && table.tensors[3].per_core == 4096 && table.tensors[1].per_core == kPart);
  CHECK(share(table, 40) == 3 + 1 + 1 + 5 && table.tensors[3].first == 5);
  CHECK(split(huge, 2).per_core > std::int64_t{1} << 32);
  CHECK(workspace_bytes(3, 40) == 40 * 32 && workspace_bytes(9, 2) == 2 * 64);
  CHECK(row_values(1) == 8 && row_values(8) == 8 && row_values(9) == 16);

  const StepValues adam = adam_values(2, 0.5F, 0.1F, 0.9, 0.999, 1e-8, true, 1);
  CHECK(adam.scale == 2 && adam.l2 == 0.5F && adam.nesterov == 1);
  CHECK(adam.keep1 == 0.9F && adam.add1 == static_cast<float>(1 - 0.9) && adam.add2 == static_cast<float>(1 - 0.999));
  CHECK(std::fabs(adam.lr - 0.1F * std::sqrt(1 - 0.999) / (1 - 0.9)) < 1e-8);
  CHECK(adam_values(1, 0, 0.1F, 0.9, 0.999, 1e-8, false, 100000).lr == 0.1F);
  CHECK(adam_weight_decay_values(1, 0.1F, 0.01F, 0.9, 0.999, 1e-8).lr == 0.1F);
  CHECK(momentum_values(1, 0, 0.1F, 0.9, false).keep1 == 0.9F);
}

}  // namespace native
