// Sizes beyond 2^32 without the memory.
#include <algorithm>

#include "adasum_kernel.h"
#include "device.h"
#include "optimizer_step_kernel.h"
#include "pca_back_project_kernel.h"
#include "pca_project_kernel.h"
#include "tiling.h"
#include "unscale_and_check_kernel.h"

namespace native {

namespace {

using namespace boost_ext;

constexpr std::int64_t kFar = std::int64_t{1} << 32;
constexpr std::int64_t kRest = 300;

Array counted(double step) {
  Array a(DType::f32, kRest);
  for (std::int64_t i = 0; i < kRest; ++i) a.set(i, step * static_cast<double>(i % 7 + 1));
  return a;
}
std::uint8_t* near(const Array& a) { return static_cast<std::uint8_t*>(a.data()); }

// Where a tensor begins whose elements from 2^32 on are those of a.
std::uint8_t* far(const Array& a) {
  return reinterpret_cast<std::uint8_t*>(reinterpret_cast<std::uintptr_t>(a.data()) -
                                         static_cast<std::uintptr_t>(4 * kFar));
}

std::uint64_t number(const void* p) { return reinterpret_cast<std::uintptr_t>(p); }

// The first core, whose part is 2^32 elements, has nothing to do here, and the second one finds its part behind it.
template <class Run> void on_second_core(Run run) {
  emulator::launch(2, [&] {
    if (AscendC::GetBlockIdx() == 1) run();
  });
}

void test_unscale() {
  Array g = counted(1), expected = counted(2), found(DType::f32, 1);
  found.fill(0);
  const Device d0(g), d1(found);
  ascend::UnscaleTable table{};
  table.tensors[table.count++] = {number(far(g)), kFar + kRest, kFar, 0};
  on_second_core([&] {
    AscendC::TPipe pipe;
    ascend::UnscaleAndCheck<float> op;
    op.Init(near(found), 2, &pipe);
    op.Process(table);
  });
  CHECK(g.same_bits(expected) && found.get(0) == 0);
}

void test_adasum() {
  const Array a = counted(1), b = counted(0.5);
  Array rows(DType::f32, 11), out(DType::f32, kRest), dots(DType::f32, 3), expected(DType::f32, kRest);
  const Device d0(a), d1(b), d2(rows), d3(out), d4(dots), d5(expected);
  on_second_core([&] {
    AscendC::TPipe pipe;
    ascend::AdasumDots<float> op;
    op.Init(far(a), far(b), near(rows), kFar + kRest, kFar, &pipe);
    op.Process();
  });
  Workspace workspace(3);
  CHECK(boost_ext_adasum_dots_f32(a.data(), b.data(), dots.data(), workspace.data(), kRest, nullptr) == 0);
  for (int i = 0; i < 3; ++i) CHECK(rows.get(8 + i) == dots.get(i) && dots.get(i) > 0);
  on_second_core([&] {
    AscendC::TPipe pipe;
    ascend::AdasumCombine<float> op;
    op.Init(far(a), far(b), near(dots), far(out), kFar + kRest, kFar, &pipe);
    op.Process();
  });
  CHECK(boost_ext_adasum_combine_f32(a.data(), b.data(), dots.data(), expected.data(), kRest, nullptr) == 0);
  CHECK(out.same_bits(expected));
}

void test_step() {
  Array w = counted(1), m = counted(0.25), v = counted(0.125);
  Array other_w = counted(1), other_m = counted(0.25), other_v = counted(0.125);
  const Array g = counted(3);
  const Device d0(w), d1(m), d2(v), d3(other_w), d4(other_m), d5(other_v), d6(g);
  const double hyper[] = {0.9, 0.999, 1e-8, 0};
  ascend::StepTable table{};
  table.tensors[table.count++] = {number(far(w)),
                                  0,
                                  number(far(g)),
                                  number(far(m)),
                                  number(far(v)),
                                  kFar + kRest,
                                  kFar,
                                  0,
                                  ascend::adam_values(1, 0, 0.5F, hyper[0], hyper[1], hyper[2], false, 1)};
  on_second_core([&] {
    AscendC::TPipe pipe;
    ascend::OptimizerStep<float, ascend::kAdam, false, ascend::StepTable, ascend::StepValues> op;
    op.Init(&pipe);
    op.Process(table);
  });
  CHECK(boost_ext_optimizer_step_f32(ascend::kAdam, other_w.data(), nullptr, g.data(), other_m.data(), other_v.data(),
                                     1, 0, 0.5F, 0, hyper, 1, kRest, nullptr) == 0);
  CHECK(w.same_bits(other_w) && m.same_bits(other_m) && v.same_bits(other_v));
}

// The columns of one row of P, and of the gradient.
void test_projections() {
  const Array P = counted(1), g = counted(0.5);
  Array rows(DType::f32, 9), sum(DType::f32, 1), vector(DType::f32, 1), out(DType::f32, kRest);
  vector.fill(2);
  const Device d0(P), d1(g), d2(rows), d3(sum), d4(vector), d5(out);
  on_second_core([&] {
    AscendC::TPipe pipe;
    ascend::PcaProject<float> op;
    op.Init(far(P), far(g), near(rows), 1, kFar + kRest, 0, kFar + kRest, kFar, &pipe);
    op.Process();
  });
  Workspace workspace(1);
  CHECK(boost_ext_pca_project_f32(P.data(), g.data(), sum.data(), workspace.data(), 1, kRest, 0, 0, kRest, nullptr) ==
        0);
  CHECK(rows.get(8) == sum.get(0) && sum.get(0) > 0);
  on_second_core([&] {
    AscendC::TPipe pipe;
    ascend::PcaBackProject<float, false> op;
    op.Init(far(P), near(vector), near(vector), far(out), far(out), 1, kFar + kRest, 0, kFar + kRest, kFar, &pipe);
    op.Process();
  });
  CHECK(out.same_bits(counted(2)));
}

// Two rows of P, one on the heap and one on the stack: further apart than 2^32 elements.
void test_rows() {
  alignas(32) float on_stack[64];
  Array on_heap(DType::f32, 64), g(DType::f32, 64), v(DType::f32, 2), out(DType::f32, 64), sums(DType::f32, 2);
  for (int i = 0; i < 64; ++i) on_stack[i] = static_cast<float>(i), on_heap.set(i, 100.0 * i);
  v.set(0, 1);
  v.set(1, 2);
  g.fill(1);
  Workspace workspace(2);
  const auto heap = reinterpret_cast<std::intptr_t>(on_heap.data());
  const auto stack = reinterpret_cast<std::intptr_t>(&on_stack[0]);
  const std::int64_t columns = (std::max(heap, stack) - std::min(heap, stack)) / 4;
  CHECK(columns > kFar);
  const emulator::Region region(on_stack, sizeof on_stack);
  const Device d0(on_heap), d1(v), d2(out), d3(g), d4(sums);
  const void* P = stack < heap ? static_cast<void*>(on_stack) : on_heap.data();
  CHECK(boost_ext_pca_back_project_f32(P, v.data(), nullptr, out.data(), nullptr, 2, columns, 0, 64, nullptr) == 0);
  for (int i = 0; i < 64; ++i) CHECK(out.get(i) == (stack < heap ? 201.0 : 102.0) * i);
  CHECK(boost_ext_pca_project_f32(P, g.data(), sums.data(), workspace.data(), 2, columns, 0, 0, 64, nullptr) == 0);
  CHECK(sums.get(0) + sums.get(1) == 101 * 2016 && sums.get(stack < heap ? 0 : 1) == 2016);
}

}  // namespace

void test_far_indices() {
  test_unscale();
  test_adasum();
  test_step();
  test_projections();
  test_rows();
}

}  // namespace native
