// The Ascend kernels on the emulator, in strict mode, beside the CPU kernels: sizes around tiles and parts, one core
// and several, all storage types.
#include "device.h"
#include "emulators/ascend/launch.h"
#include "ops/adasum.h"
#include "ops/bfgs_update.h"
#include "ops/pca_back_project.h"
#include "ops/pca_project.h"
#include "ops/unscale_and_check.h"

namespace native {

namespace {

using namespace boost_ext;

constexpr std::int64_t kSizes[] = {1, 7, 16, 63, 65, 257, 2047, 2049, 4095, 4096, 4097, 8191, 8193, 20001};
constexpr std::int32_t kCores[] = {1, 3, 7};

void test_unscale(DType dtype, std::int64_t n, std::mt19937& random) {
  const Context cpu = cpu_context();
  const double large = dtype == DType::f16 ? 60000 : 3e38;  // finite before the multiplication only
  for (const double special : {0.0, static_cast<double>(INFINITY), static_cast<double>(NAN), large}) {
    Array ours(dtype, n), theirs(dtype, n), found(DType::f32, 1);
    ours.fill(random);
    if (special != 0) ours.set(static_cast<std::int64_t>(random() % static_cast<std::uint32_t>(n)), special);
    theirs.copy(ours);
    found.fill(0);
    const Device a(ours), b(found);
    const float scale = special == large ? 1.5F : 0.37F;
    CHECK(ASCEND(unscale_and_check, dtype)(ours.data(), found.data(), scale, n, nullptr) == 0);
    const bool bad = unscale_and_find(cpu, {theirs.view()}, scale)[0].found();
    CHECK(std::isnan(special) || ours.same_bits(theirs));
    CHECK(bad ? std::isnan(found.get(0)) : found.get(0) == 0);
    CHECK(boost_ext_flag(found.data(), nullptr) == 0 && found.get(0) == (bad ? 1 : 0));
    CHECK(bad == (special != 0));
  }
  Array g(dtype, n), before(dtype, n), found(DType::f32, 1);  // nothing is written, but looked at
  g.fill(random).set(n - 1, INFINITY);
  before.copy(g);
  found.fill(0);
  const Device a(g), b(found);
  CHECK(ASCEND(unscale_and_check, dtype)(g.data(), found.data(), 1, n, nullptr) == 0);
  CHECK(g.same_bits(before) && std::isnan(found.get(0)));
}

void test_adasum(DType dtype, std::int64_t n, std::mt19937& random) {
  const Context cpu = cpu_context();
  Array a(dtype, n), b(dtype, n), out(dtype, n), expected(dtype, n), dots(DType::f32, 3), exact(DType::f64, 3);
  a.fill(random);
  b.fill(random);
  Workspace workspace(3);
  const Device d0(a), d1(b), d2(out), d3(dots);
  CHECK(ASCEND(adasum_dots, dtype)(a.data(), b.data(), dots.data(), workspace.data(), n, nullptr) == 0);
  adasum_dots(cpu, {a.view()}, {b.view()}, exact.view());
  for (int i = 0; i < 3; ++i) CHECK(dots.get(i) == exact.get(i));  // multiples of 1/64 below 2^17: exact in float32
  for (int i = 0; i < 3; ++i) exact.set(i, dots.get(i));
  CHECK(ASCEND(adasum_combine, dtype)(a.data(), b.data(), dots.data(), out.data(), n, nullptr) == 0);
  adasum_combine(cpu, {a.view()}, {b.view()}, exact.view(), {expected.view()});
  bool right = true;
  for (std::int64_t i = 0; i < n; ++i) right = right && close(out, i, expected.get(i), 0.1);
  CHECK(right);
  // Into a itself, and with a vector of norm 0: the other one.
  CHECK(ASCEND(adasum_combine, dtype)(a.data(), b.data(), dots.data(), a.data(), n, nullptr) == 0);
  CHECK(a.same_bits(out));
  a.fill(0);
  CHECK(ASCEND(adasum_dots, dtype)(a.data(), b.data(), dots.data(), workspace.data(), n, nullptr) == 0);
  CHECK(ASCEND(adasum_combine, dtype)(a.data(), b.data(), dots.data(), out.data(), n, nullptr) == 0);
  for (std::int64_t i = 0; i < n; ++i) right = right && out.get(i) == b.get(i);
  CHECK(right && dots.get(1) == 0);
}

void test_project(DType dtype, std::int64_t n, std::int64_t k, std::mt19937& random) {
  const Context cpu = cpu_context();
  Array P(dtype, k * n, k), g(dtype, n), out(DType::f32, k), expected(DType::f32, k), again(DType::f32, k);
  P.fill(random);
  g.fill(random);
  Workspace workspace(k);
  const Device d0(P), d1(g), d2(out), d3(again);
  CHECK(ASCEND(pca_project, dtype)(P.data(), g.data(), out.data(), workspace.data(), k, n, 0, 0, n, nullptr) == 0);
  pca_project(cpu, P.view(), {g.view()}, expected.view());
  for (std::int64_t r = 0; r < k; ++r) CHECK(out.get(r) == expected.get(r));  // exact sums
  if (n < 300) return;
  // Two tensors: the second one's sums on top of the first one's, columns that start anywhere.
  const std::int64_t first = 113 + n / 3;
  const auto size = item_size(dtype);
  for (const std::int64_t column : {std::int64_t{0}, first}) {
    const std::int64_t count = column == 0 ? first : n - first;
    CHECK(ASCEND(pca_project, dtype)(P.data(), static_cast<char*>(g.data()) + column * size, again.data(),
                                     workspace.data(), k, n, column, column == 0 ? 0 : 1, count, nullptr) == 0);
  }
  CHECK(again.same_bits(out));
}

// |sum - true sum| within a few roundings of the sum of the magnitudes.
bool sums_to(double got, const Array& a, std::int64_t begin, const Array& b, std::int64_t n) {
  double sum = 0, scale = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    sum += a.get(begin + i) * b.get(i);
    scale += std::fabs(a.get(begin + i) * b.get(i));
  }
  return std::fabs(got - sum) < 4 * 0x1p-24 * scale;
}

// No float32 holds these sums: the same bits all the same in every run, and close to the true ones.
void test_rounding() {
  const std::int64_t n = 50000, k = 3;
  Array P(DType::f32, k * n, k), g(DType::f32, n), out(DType::f32, k), again(DType::f32, k), dots(DType::f32, 3);
  for (std::int64_t i = 0; i < n; ++i) g.set(i, std::sin(0.1 * static_cast<double>(i)) + 1);
  for (std::int64_t i = 0; i < k * n; ++i) P.set(i, std::cos(0.3 * static_cast<double>(i)));
  Workspace workspace(k);
  const Device d0(P), d1(g), d2(out), d3(again), d4(dots);
  CHECK(boost_ext_pca_project_f32(P.data(), g.data(), out.data(), workspace.data(), k, n, 0, 0, n, nullptr) == 0);
  emulator::settings.seed = 7;
  CHECK(boost_ext_pca_project_f32(P.data(), g.data(), again.data(), workspace.data(), k, n, 0, 0, n, nullptr) == 0);
  emulator::settings.seed = 1;
  CHECK(out.same_bits(again));
  for (std::int64_t r = 0; r < k; ++r) CHECK(sums_to(out.get(r), P, r * n, g, n));
  CHECK(boost_ext_adasum_dots_f32(P.data(), g.data(), dots.data(), workspace.data(), n, nullptr) == 0);
  CHECK(sums_to(dots.get(0), P, 0, g, n) && sums_to(dots.get(1), P, 0, P, n) && sums_to(dots.get(2), g, 0, g, n));
}

void test_back_project(DType dtype, std::int64_t n, std::int64_t k, std::mt19937& random) {
  const Context cpu = cpu_context();
  const std::int64_t columns = n + 5, column = 3;
  Array P(dtype, k * columns, k), part(dtype, k * n, k), v(DType::f32, k), w(DType::f32, k);
  Array x(dtype, n), y(dtype, n), one(dtype, n), of_v(dtype, n), of_w(dtype, n);
  for (std::int64_t i = 0; i < P.size(); ++i) P.set(i, 2 + std::sin(static_cast<double>(i)));
  for (std::int64_t r = 0; r < k; ++r) {
    for (std::int64_t i = 0; i < n; ++i) part.set(r * n + i, P.get(r * columns + column + i));
  }
  v.fill(random);
  for (std::int64_t r = 0; r < k; ++r) w.set(r, std::cos(static_cast<double>(r)));
  const Device d0(P), d1(v), d2(w), d3(x), d4(y), d5(one);
  CHECK(ASCEND(pca_back_project, dtype)(P.data(), v.data(), w.data(), x.data(), y.data(), k, columns, column, n,
                                        nullptr) == 0);
  CHECK(ASCEND(pca_back_project, dtype)(P.data(), w.data(), nullptr, one.data(), nullptr, k, columns, column, n,
                                        nullptr) == 0);
  pca_back_project(cpu, part.view(), {v.view(), w.view()}, {{of_v.view()}, {of_w.view()}});
  CHECK(x.same_bits(of_v) && y.same_bits(of_w) && one.same_bits(of_w));  // the same operations in the same order
}

void test_bfgs(std::int64_t k, std::mt19937& random) {
  Array B(DType::f32, k * k, k), expected(DType::f64, k * k, k), s(DType::f32, k), y(DType::f32, k);
  Array s64(DType::f64, k), y64(DType::f64, k), updated(DType::f32, 1);
  const auto uniform = [&] { return static_cast<double>(random() % 2001) / 1000 - 1; };
  for (std::int64_t i = 0; i < k; ++i) {
    s.set(i, uniform());
    y.set(i, s.get(i) + 0.25 * uniform());
    for (std::int64_t j = 0; j <= i; ++j) {
      const double value = (i == j ? 1 : 0) + 0.1 * uniform();
      B.set(i * k + j, value);
      B.set(j * k + i, value);
    }
  }
  s.set(0, 1);
  y.set(0, 1);
  for (std::int64_t i = 0; i < k * k; ++i) expected.set(i, B.get(i));
  for (std::int64_t i = 0; i < k; ++i) s64.set(i, s.get(i)), y64.set(i, y.get(i));
  const Device d0(B), d1(s), d2(y), d3(updated);
  CHECK(boost_ext_bfgs_update_f32(B.data(), s.data(), y.data(), updated.data(), 1e-8F, k, nullptr) == 0);
  float on_cpu = 0;
  bfgs_update(cpu_context(), expected.view(), s64.view(), y64.view(), 1e-8, view_of(on_cpu));
  CHECK(on_cpu == 1 && updated.get(0) == 1);
  double largest = 0;
  for (std::int64_t i = 0; i < k * k; ++i) largest = std::max(largest, std::fabs(expected.get(i)));
  bool right = true;
  for (std::int64_t i = 0; i < k; ++i) {
    for (std::int64_t j = 0; j < k; ++j) {
      right = right && std::fabs(B.get(i * k + j) - expected.get(i * k + j)) <= 1e-5 * largest;
      right = right && B.get(i * k + j) == B.get(j * k + i);
    }
  }
  CHECK(right);
  // Not updated: a product below eps, and numbers that are not finite.
  for (const double bad : {0.0, static_cast<double>(NAN), static_cast<double>(INFINITY)}) {
    Array before(DType::f32, k * k, k), old(DType::f32, k);
    before.copy(B);
    old.copy(y);
    if (bad == 0) y.fill(0);
    y.set(k - 1, bad);
    CHECK(boost_ext_bfgs_update_f32(B.data(), s.data(), y.data(), updated.data(), 1e-8F, k, nullptr) == 0);
    CHECK(updated.get(0) == 0 && B.same_bits(before));
    y.copy(old);
  }
}

// How many launches a tensor takes: rows of sums only where several cores leave them.
void test_launches() {
  const std::int64_t n = 5000;
  Array a(DType::f32, 2 * n), sums(DType::f32, 3);
  a.fill(1);
  Workspace workspace(3);
  const Device d0(a), d1(sums);
  set_cores(4);
  const auto launches = [&](auto run) {
    const int before = emulator::launches;
    CHECK(run() == 0);
    return emulator::launches - before;
  };
  const auto dots = [&](std::int64_t size) {
    return boost_ext_adasum_dots_f32(a.data(), a.data(), sums.data(), workspace.data(), size, nullptr);
  };
  const auto project = [&](std::int64_t size, std::int32_t accumulate) {
    return boost_ext_pca_project_f32(a.data(), a.data(), sums.data(), workspace.data(), 2, n, 0, accumulate, size,
                                     nullptr);
  };
  CHECK(launches([&] { return dots(n); }) == 2 && sums.get(0) == n);
  CHECK(launches([&] { return dots(2048); }) == 1 && sums.get(0) == 2048);
  CHECK(launches([&] { return project(n, 0); }) == 2 && sums.get(1) == n);
  CHECK(launches([&] { return project(2048, 0); }) == 1 && sums.get(1) == 2048);
  CHECK(launches([&] { return project(2048, 1); }) == 2 && sums.get(1) == 4096);
  CHECK(launches([&] { return project(0, 1); }) == 0 && sums.get(1) == 4096);
}

// Nothing to do, and what cannot be done.
void test_degenerate() {
  Array out(DType::f32, 3), nothing(DType::f32, 0);
  Workspace workspace(3);
  const Device d(out);
  CHECK(boost_ext_unscale_and_check_f32(nullptr, nullptr, 1, 0, nullptr) == 0);
  CHECK(boost_ext_adasum_dots_f32(nullptr, nullptr, out.data(), workspace.data(), 0, nullptr) == 0);
  CHECK(out.get(0) == 0 && out.get(1) == 0 && out.get(2) == 0);
  out.fill(5);
  CHECK(boost_ext_pca_project_f16(nullptr, nullptr, out.data(), workspace.data(), 3, 0, 0, 1, 0, nullptr) == 0);
  CHECK(out.get(0) == 5 && out.get(2) == 5);
  CHECK(boost_ext_pca_project_f16(nullptr, nullptr, out.data(), workspace.data(), 3, 0, 0, 0, 0, nullptr) == 0);
  CHECK(out.get(0) == 0 && out.get(2) == 0);
  CHECK(boost_ext_pca_back_project_f32(nullptr, nullptr, nullptr, nullptr, nullptr, 2, 0, 0, 0, nullptr) == 0);
  CHECK(boost_ext_adasum_combine_f32(nullptr, nullptr, nullptr, nullptr, 0, nullptr) == 0);
  CHECK(boost_ext_pca_project_f32(nullptr, nullptr, nullptr, nullptr, 0, 0, 0, 0, 0, nullptr) == 1);
  CHECK(boost_ext_pca_back_project_f32(nullptr, nullptr, nullptr, nullptr, nullptr, 2049, 0, 0, 9, nullptr) == 1);
  CHECK(boost_ext_bfgs_update_f32(nullptr, nullptr, nullptr, nullptr, 0, 193, nullptr) == 1);
  set_cores(0);  // no device
  CHECK(boost_ext_unscale_and_check_f32(nullptr, nullptr, 1, 9, nullptr) == 2);
  set_cores(4);
}

}  // namespace

void test_ascend_kernels() {
  std::mt19937 random(5);
  std::size_t turn = 0;
  for (const std::int64_t n : kSizes) {
    for (const DType dtype : kStorage) {
      set_cores(kCores[turn++ % 3]);
      test_unscale(dtype, n, random);
      test_adasum(dtype, n, random);
      test_project(dtype, n, 1 + static_cast<std::int64_t>(turn % 5), random);
      test_back_project(dtype, n, 1 + static_cast<std::int64_t>(turn % 9), random);
    }
  }
  for (const std::int32_t cores : kCores) {
    set_cores(cores);
    test_project(DType::f32, 4700, 130, random);  // more rows than fit at once
    test_rounding();
    test_back_project(DType::bf16, 600, 40, random);
  }
  for (const std::int64_t k : {1, 2, 7, 8, 9, 64, 65, 192}) test_bfgs(k, random);
  test_launches();
  test_degenerate();
}

}  // namespace native
