// Every barrier and every flag of the kernels is needed, and the emulator misses each of them.
#include <functional>
#include <map>

#include "device.h"
#include "tiling.h"
#include "unscale_and_check_kernel.h"

namespace native {

namespace {

// Some tiles on each of two cores, with a rest, so that buffers come round.
void unscale(DType dtype) {
  const std::int64_t n = 40003;
  Array g(dtype, n), found(DType::f32, 1);
  g.fill(1);
  found.fill(0);
  const Device a(g), b(found);
  ASCEND(unscale_and_check, dtype)(g.data(), found.data(), 0.5F, n, nullptr);
  ASCEND(unscale_and_check, dtype)(g.data(), found.data(), 1, n, nullptr);
}

// Two cores, one with eight elements and one without any: more than a launch ever takes.
void unscale_on_idle_core() {
  Array g(DType::f32, 8), found(DType::f32, 1);
  g.fill(1);
  found.fill(0);
  const Device a(g), b(found);
  const boost_ext::ascend::UnscaleTable table{{{reinterpret_cast<std::uintptr_t>(g.data()), 8, 8, 0}}, 1};
  emulator::launch(2, [&] {
    AscendC::TPipe pipe;
    boost_ext::ascend::UnscaleAndCheck<float> op;
    op.Init(static_cast<GM_ADDR>(found.data()), 1, &pipe);
    op.Process(table);
  });
}

void flag() {
  Array found(DType::f32, 1);
  found.fill(0);
  const Device d(found);
  boost_ext_flag(found.data(), nullptr);
}

void adasum(DType dtype, std::int64_t n) {
  Array a(dtype, n), b(dtype, n), dots(DType::f32, 3);
  a.fill(1);
  b.fill(2);
  Workspace workspace(3);
  const Device d0(a), d1(b), d2(dots);
  ASCEND(adasum_dots, dtype)(a.data(), b.data(), dots.data(), workspace.data(), n, nullptr);
  ASCEND(adasum_combine, dtype)(a.data(), b.data(), dots.data(), a.data(), n, nullptr);
}

void project(DType dtype, std::int64_t n) {
  const std::int64_t k = 66;
  Array P(dtype, k * n), g(dtype, n), out(DType::f32, k);
  P.fill(1);
  g.fill(1);
  out.fill(0);
  Workspace workspace(k);
  const Device d0(P), d1(g), d2(out);
  ASCEND(pca_project, dtype)(P.data(), g.data(), out.data(), workspace.data(), k, n, 0, n > 0 ? 1 : 0, n, nullptr);
}

void back_project(DType dtype) {
  const std::int64_t n = 20003, k = 3;
  Array P(dtype, k * n), v(DType::f32, k), x(dtype, n), y(dtype, n);
  P.fill(1);
  v.fill(1);
  const Device d0(P), d1(v), d2(x), d3(y);
  ASCEND(pca_back_project, dtype)(P.data(), v.data(), v.data(), x.data(), y.data(), k, n, 0, n, nullptr);
}

void step(DType dtype) {
  const std::int64_t n = 10003;
  Array w(dtype, n), g(dtype, n), m(DType::f32, n), v(DType::f32, n), master(DType::f32, n);
  for (Array* a : {&w, &g, &m, &v, &master}) a->fill(1);
  const Device d0(w), d1(g), d2(m), d3(v), d4(master);
  const double nesterov[] = {0.9, 1}, adam[] = {0.9, 0.9, 1e-3, 1};
  void* masters = dtype == DType::f32 ? nullptr : master.data();
  for (const std::int32_t rule :
       {boost_ext::ascend::kMomentum, boost_ext::ascend::kAdam, boost_ext::ascend::kAdamWeightDecay}) {
    ASCEND(optimizer_step, dtype)(rule, w.data(), masters, g.data(), m.data(), v.data(), 1, 0.5F, 0.1F, 0.1F,
                                  rule == boost_ext::ascend::kMomentum ? nesterov : adam, 1, n, nullptr);
  }
}

void bfgs() {
  const std::int64_t k = 9;
  Array B(DType::f32, k * k), s(DType::f32, k), y(DType::f32, k), updated(DType::f32, 1);
  B.fill(0);
  for (std::int64_t i = 0; i < k; ++i) B.set(i * k + i, 1);
  s.fill(1);
  y.fill(1);
  const Device d0(B), d1(s), d2(y), d3(updated);
  boost_ext_bfgs_update_f32(B.data(), s.data(), y.data(), updated.data(), 0, k, nullptr);
}

bool fails(const std::function<void()>& kernel) {
  try {
    kernel();
  } catch (const emulator::Error&) { return true; }
  return false;
}

// The kernel for some dtypes: what one of them does not need another one does.
void check_needed(const char* name, std::map<std::string, bool>& shared,
                  const std::vector<std::function<void()>>& kernels) {
  emulator::barriers_seen.clear();
  emulator::waits_seen = 0;
  for (const auto& kernel : kernels) CHECK(!fails(kernel));
  const auto needed = [&] {
    for (const auto& kernel : kernels) {
      if (fails(kernel)) return true;
    }
    return false;
  };
  const std::set<std::string> barriers = emulator::barriers_seen;
  for (const std::string& at : barriers) {
    emulator::settings.without_barrier = at;
    if (at.rfind("tile.h:", 0) == 0) {  // some kernel needs it
      shared[at] = shared[at] || needed();
      continue;
    }
    const bool ok = needed();
    CHECK(ok);
    if (!ok) std::printf("%s does not need the barrier at %s\n", name, at.c_str());
  }
  emulator::settings.without_barrier.clear();
  const int waits = emulator::waits_seen;
  for (int i = 0; i < waits; ++i) {
    emulator::settings.without_wait = i;
    const bool ok = needed();
    CHECK(ok);
    if (!ok) std::printf("%s does not need its wait %d\n", name, i);
  }
  emulator::settings.without_wait = -1;
}

}  // namespace

void test_barriers() {
  set_cores(2);
  std::map<std::string, bool> shared;
  const auto both = [](void (*kernel)(DType)) {
    return std::vector<std::function<void()>>{[kernel] { kernel(DType::f32); }, [kernel] { kernel(DType::bf16); }};
  };
  const auto with_empty = [](void (*kernel)(DType, std::int64_t), std::int64_t n) {
    return std::vector<std::function<void()>>{[=] { kernel(DType::f32, n); }, [=] { kernel(DType::bf16, n); },
                                              [=] { kernel(DType::f32, 0); }};
  };
  auto unscales = both(unscale);
  unscales.emplace_back(unscale_on_idle_core);
  check_needed("unscale_and_check", shared, unscales);
  check_needed("flag", shared, {flag});
  check_needed("adasum", shared, with_empty(adasum, 20003));
  check_needed("pca_project", shared, with_empty(project, 9003));
  check_needed("pca_back_project", shared, both(back_project));
  check_needed("optimizer_step", shared, both(step));
  check_needed("bfgs_update", shared, {bfgs});
  CHECK(!shared.empty());
  for (const auto& [at, needed] : shared) {
    CHECK(needed);
    if (!needed) std::printf("no kernel needs the barrier at %s\n", at.c_str());
  }
}

}  // namespace native
