// Every op on exactly sized arrays: all storage types, sizes around lanes and blocks, one thread and three, each
// instruction set. Run under AddressSanitizer and UndefinedBehaviorSanitizer, or ThreadSanitizer, by the presets asan
// and tsan.
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "harness.h"
#include "ops/accumulate.h"
#include "ops/adaptive_clip.h"
#include "ops/adasum.h"
#include "ops/bfgs_update.h"
#include "ops/centralize.h"
#include "ops/dim_reduce.h"
#include "ops/global_norm.h"
#include "ops/loss_scale_update.h"
#include "ops/pca_back_project.h"
#include "ops/pca_project.h"
#include "ops/unscale_and_check.h"

namespace native {

void test_conv2d();
void test_doors();
void test_adafactor_step();
void test_apollo_step();
void test_muon_step();
void test_dropout(const boost_ext::Context& context, DType dtype, std::int64_t n, std::mt19937& random);
void test_optimizer_step();

namespace {

using namespace boost_ext;

constexpr DType kFloats[] = {DType::f32, DType::f16, DType::bf16};
constexpr std::int64_t kSizes[] = {0,    1,    15,   16,   17,    63,    64,    65,    4095,
                                   4096, 4097, 8191, 8193, 16383, 16385, 32767, 32769, 70001};
constexpr std::int64_t kRows = 5;

std::vector<double> values(const Array& a) {
  std::vector<double> v;
  for (std::int64_t i = 0; i < a.size(); ++i) v.push_back(a.get(i));
  return v;
}

void test_pca(const Context& context, DType dtype, std::int64_t n, std::mt19937& random) {
  Array P(dtype, kRows * n, kRows), g(dtype, n), rest(DType::f32, 0), out(DType::f32, kRows);
  P.fill(random);
  g.fill(random);
  pca_project(context, P.view(), {g.view(), rest.view()}, out.view());
  for (std::int64_t r = 0; r < kRows; ++r) {
    double sum = 0, scale = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      sum += P.get(r * n + i) * g.get(i);
      scale += std::fabs(P.get(r * n + i) * g.get(i));
    }
    CHECK(close(out, r, sum, scale));
  }

  Array v(DType::f32, kRows), w(DType::f32, kRows), x(dtype, n), y(DType::f32, n), none(dtype, 0);
  v.fill(random);
  w.fill(random);
  pca_back_project(context, P.view(), {v.view(), w.view()}, {{x.view(), none.view()}, {y.view(), none.view()}});
  bool right = true;
  for (std::int64_t i = 0; i < n; ++i) {
    double of_v = 0, of_w = 0, scale = 0;
    for (std::int64_t r = 0; r < kRows; ++r) {
      of_v += P.get(r * n + i) * v.get(r);
      of_w += P.get(r * n + i) * w.get(r);
      scale += std::fabs(P.get(r * n + i)) * 4;
    }
    right = right && close(x, i, of_v, scale) && close(y, i, of_w, scale);
  }
  CHECK(right);
}

// Two tensors, of which the second begins anywhere in a block of columns.
void test_codes(const Context& context, std::int64_t n, std::mt19937& random) {
  const std::int64_t blocks = (n + kProjectionBlock - 1) / kProjectionBlock, first = n / 3;
  Array P(DType::i8, kRows * n, kRows), scale(DType::f32, kRows * blocks, kRows), out(DType::f32, kRows);
  Array g(DType::f32, first), h(DType::f16, n - first), x(DType::f32, first), y(DType::f32, n - first);
  for (std::int64_t i = 0; i < P.size(); ++i) P.set(i, static_cast<int>(random() % 255) - 127);
  scale.fill(random);
  g.fill(random);
  h.fill(random);
  const View scales = scale.view();
  const auto element = [&](std::int64_t r, std::int64_t i) {
    return scale.get(r * blocks + i / kProjectionBlock) * P.get(r * n + i);
  };
  pca_project(context, P.view(), {g.view(), h.view()}, out.view(), scales);
  std::vector<double> image(static_cast<std::size_t>(n)), size(image);
  for (std::int64_t r = 0; r < kRows; ++r) {
    double sum = 0, magnitude = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      const double term = element(r, i) * (i < first ? g.get(i) : h.get(i - first));
      sum += term;
      magnitude += std::fabs(term);
      image[static_cast<std::size_t>(i)] += element(r, i) * static_cast<double>(r + 1);
      size[static_cast<std::size_t>(i)] += std::fabs(element(r, i)) * static_cast<double>(r + 1);
    }
    CHECK(close(out, r, sum, magnitude));
    out.set(r, static_cast<double>(r + 1));
  }
  pca_back_project(context, P.view(), {out.view()}, {{x.view(), y.view()}}, scales);
  bool right = true;
  for (std::int64_t i = 0; i < n; ++i) {
    const auto at = static_cast<std::size_t>(i);
    right = right && (i < first ? close(x, i, image[at], size[at]) : close(y, i - first, image[at], size[at]));
  }
  CHECK(right);
}

void test_adasum(const Context& context, DType dtype, std::int64_t n, std::mt19937& random) {
  Array a(dtype, n), b(dtype, n), out(dtype, n), again(dtype, n), dots(DType::f64, 3);
  a.fill(random);
  b.fill(random);
  double ab = 0, aa = 0, bb = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    ab += a.get(i) * b.get(i);
    aa += a.get(i) * a.get(i);
    bb += b.get(i) * b.get(i);
  }
  adasum_dots(context, {a.view()}, {b.view()}, dots.view());
  CHECK(dots.get(0) == ab && dots.get(1) == aa && dots.get(2) == bb);  // multiples of 1/64: exact
  adasum_pair(context, {a.view()}, {b.view()}, {out.view()});
  adasum_combine(context, {a.view()}, {b.view()}, dots.view(), {again.view()});
  CHECK(again.same_bits(out));
  const double of_a = aa == 0 ? 1 : 1 - ab / (2 * aa);
  const double of_b = bb == 0 ? 1 : 1 - ab / (2 * bb);
  bool right = true;
  for (std::int64_t i = 0; i < n; ++i) right = right && close(out, i, of_a * a.get(i) + of_b * b.get(i), 4);
  CHECK(right);
  adasum_pair(context, {a.view()}, {b.view()}, {a.view()});
  CHECK(a.same_bits(out));
}

double norm_of(const Context& context, const Array& a) {
  double norm = 0;
  global_norm(context, {a.view()}, view_of(norm));
  return norm;
}

void test_gradients(const Context& context, DType dtype, std::int64_t n, std::mt19937& random) {
  Array g(dtype, n);
  g.fill(random);
  const std::vector<double> before = values(g);
  double squares = 0, largest = 0;
  for (double x : before) {
    squares += x * x;
    largest = std::fmax(largest, std::fabs(x));
  }
  CHECK(norm_of(context, g) == std::sqrt(squares));
  Array rows_of(DType::f64, 8);
  std::vector<double> sums;
  float found = 1;
  sums = check_and_square(context, {g.view(), g.view()}, 1, rows_of.view(), view_of(found));
  CHECK(found == 0 && sums[0] == squares && sums[1] == squares && rows_of.get(3) == largest);
  Finiteness f = unscale_and_find(context, {g.view()}, 0.5)[0];
  CHECK(!f.found() && f.inf == 0 && f.nan == 0 && static_cast<double>(f.max_abs) == largest / 2);
  bool right = true;
  for (std::int64_t i = 0; i < n; ++i) right = right && g.get(i) == before[i] / 2;
  CHECK(right);
  for (std::int64_t place : {std::int64_t{0}, n / 2, n - 1}) {
    if (n == 0) break;
    const double kept = g.get(place);
    g.set(place, place == 0 ? -INFINITY : NAN);
    f = unscale_and_find(context, {g.view()}, place == 0 ? 1 : 0.5)[0];
    CHECK(f.found() && f.first == place && f.inf + f.nan == 1);
    g.set(place, kept);
  }

  Array matrix(dtype, 3 * n, 3);
  matrix.fill(random);
  const std::vector<double> rows = values(matrix);
  centralize_in_place(context, {matrix.view(), g.view()});
  right = true;
  for (std::int64_t r = 0; r < 3; ++r) {
    double mean = 0;
    for (std::int64_t i = 0; i < n; ++i) mean += rows[r * n + i] / static_cast<double>(n);
    for (std::int64_t i = 0; i < n; ++i) right = right && close(matrix, r * n + i, rows[r * n + i] - mean, 4);
  }
  CHECK(right);

  matrix.fill(random);
  const std::vector<double> long_rows = values(matrix);
  Array of_weights(DType::f32, 3 * n, 3);  // of ones, and the first row of zeros
  for (std::int64_t i = 0; i < 3 * n; ++i) of_weights.set(i, i < n ? 0 : 1);
  adaptive_clip(context, {matrix.view()}, {of_weights.view()}, 0.25, 0.5, 1);
  right = true;
  for (std::int64_t r = 0; r < 3; ++r) {
    double norm = 0;
    for (std::int64_t i = 0; i < n; ++i) norm += long_rows[r * n + i] * long_rows[r * n + i];
    norm = std::sqrt(norm);
    const double limit = 0.25 * (r == 0 ? 0.5 : std::max(0.5, std::sqrt(static_cast<double>(n))));
    const double factor = norm > limit ? limit / norm : 1;
    for (std::int64_t i = 0; i < n; ++i) right = right && close(matrix, r * n + i, factor * long_rows[r * n + i], 4);
  }
  CHECK(right);
}

void test_accumulate(const Context& context, DType dtype, std::int64_t n, std::mt19937& random) {
  Array a(DType::f32, n), g(dtype, n), none(DType::f32, 0), empty(dtype, 0);
  g.fill(random);
  accumulate(context, {a.view(), none.view()}, {g.view(), empty.view()}, 0.5, true);  // over nan
  bool right = true;
  for (std::int64_t i = 0; i < n; ++i) right = right && a.get(i) == 0.5 * g.get(i);
  accumulate(context, {a.view(), none.view()}, {g.view(), empty.view()}, -2, false);
  for (std::int64_t i = 0; i < n; ++i) right = right && a.get(i) == -1.5 * g.get(i);
  CHECK(right);
}

void test_dim_reduce(const Context& context, DType dtype, std::int64_t n, std::mt19937& random) {
  Array w(dtype, n), saved(dtype, n), dn(DType::f32, n), step(DType::f32, 1);
  w.fill(random);
  dn.fill(random);
  step.fill(0.5);
  const std::vector<double> start = values(w);
  dim_reduce_trial(context, {w.view()}, {saved.view()}, {dn.view()}, step.view(), true);
  bool right = true;
  for (std::int64_t i = 0; i < n; ++i) {
    right = right && saved.get(i) == start[i] && close(w, i, start[i] + 0.5 * dn.get(i), 4);
  }
  CHECK(right);
  step.fill(0);
  dim_reduce_trial(context, {w.view()}, {saved.view()}, {dn.view()}, step.view(), false);
  CHECK(w.same_bits(saved));

  Array m(DType::f32, n), g(dtype, n), proj(DType::f32, n), rates(DType::f32, 1);
  m.fill(random);
  g.fill(random);
  proj.fill(random);
  rates.fill(0.25);
  const std::vector<double> momentum = values(m);
  const Number rho{0.25, {}}, inv_scale{0.125, {}};
  dim_reduce_apply(context, {m.view()}, {g.view()}, {proj.view()}, {dn.view()}, 0.5, 2, rho, inv_scale, {w.view()},
                   {saved.view()}, rates.view());
  right = true;
  for (std::int64_t i = 0; i < n; ++i) {
    const double next = 0.5 * momentum[i] + 0.125 * g.get(i) - proj.get(i);
    right = right && m.get(i) == next && close(w, i, start[i] - 0.25 * (2 * next - 0.25 * dn.get(i)), 8);
  }
  CHECK(right);
  const std::vector<double> projected = values(proj);
  dim_reduce_apply(context, {m.view()}, {g.view()}, {proj.view()}, {dn.view()}, 0.5, 2, rho, inv_scale, {proj.view()},
                   {}, 0);
  right = true;
  for (std::int64_t i = 0; i < n; ++i) right = right && close(proj, i, 2 * m.get(i) - 0.25 * dn.get(i), 8);
  CHECK(right);
}

void test_small_matrices(std::int64_t k) {
  for (DType dtype : {DType::f32, DType::f64}) {
    Array B(dtype, k * k, k), s(dtype, k), y(dtype, k);
    for (std::int64_t i = 0; i < k * k; ++i) B.set(i, i % (k + 1) == 0 ? 1 : 0);
    for (std::int64_t i = 0; i < k; ++i) {
      s.set(i, 1 + static_cast<double>(i % 3) / 4);
      y.set(i, 2 - static_cast<double>(i % 5) / 4);
    }
    float updated = 0;
    bfgs_update({}, B.view(), s.view(), y.view(), 1e-20, view_of(updated));
    CHECK(updated == 1);
    bool secant = true, symmetric = true;
    for (std::int64_t i = 0; i < k; ++i) {
      double sum = 0, scale = 0;
      for (std::int64_t j = 0; j < k; ++j) {
        sum += B.get(i * k + j) * y.get(j);
        scale += std::fabs(B.get(i * k + j) * y.get(j));
        symmetric = symmetric && B.get(i * k + j) == B.get(j * k + i);
      }
      secant = secant && std::fabs(sum - s.get(i)) <= 0x1p-22 * scale;
    }
    CHECK(secant && symmetric);
    y.fill(-1);
    bfgs_update({}, B.view(), s.view(), y.view(), 1e-20, view_of(updated));
    CHECK(updated == 0);
  }

  Array B(DType::f32, k * k, k), next(DType::f32, k * k, k), s(DType::f32, k), last(DType::f32, k), gk(DType::f32, k),
      dk(DType::f32, k);
  for (std::int64_t i = 0; i < k * k; ++i) B.set(i, i % (k + 1) == 0 ? 2 : 0);
  s.fill(1);
  last.fill(1);
  gk.fill(8);
  double slope = 0;
  dim_reduce_direction({}, B.view(), s.view(), last.view(), false, gk.view(), Number{0.25, {}}, next.view(), dk.view(),
                       0, view_of(slope));
  CHECK(slope == static_cast<double>(-8 * k) && next.same_bits(B) && gk.get(k - 1) == 2 && dk.get(0) == -4);
  dim_reduce_direction({}, B.view(), s.view(), last.view(), true, gk.view(), Number{1, {}}, next.view(), dk.view(),
                       1e-20, view_of(slope));
  CHECK(std::fabs(dk.get(k - 1) + 2) < 1e-4);  // y = s, hence B_next y = s, and gk = 2 y
}

void test_loss_scale() {
  Array scale(DType::f32, 1), counters(DType::i32, 3);
  scale.fill(8);
  counters.fill(0);
  loss_scale_update({}, scale.view(), counters.view(), Number{1, {}}, 2, 2, 64);
  CHECK(scale.get(0) == 4 && counters.get(0) == 1 && counters.get(1) == 0 && counters.get(2) == 1);
  CHECK_THROWS(loss_scale_update({}, scale.view(), counters.view(), Number{1, {}}, 1, 2, 64), std::invalid_argument,
               "loss_scale_update: factor must be finite and > 1, got 1");
}

void test_refusals() {
  Array a(DType::f32, 8), b(DType::f32, 7), narrow(DType::f16, 8);
  CHECK_THROWS(adasum_pair({}, {a.view()}, {b.view()}, {a.view()}), std::invalid_argument,
               "adasum_pair: b[0] must have 8 elements, got 7");
  CHECK_THROWS(adasum_pair({}, {a.view()}, {narrow.view()}, {a.view()}), TypeError,
               "adasum_pair: b[0] must be float32, got float16");
  double norm = 0;
  CHECK_THROWS(global_norm({}, {}, view_of(norm)), std::invalid_argument,
               "global_norm: tensors must hold at least one array, got an empty list");
  View elsewhere = a.view();
  elsewhere.device = Device::ascend;
#if defined(BOOST_EXT_WITH_ASCEND)
  const char* why = "global_norm: got Ascend arrays, but this op has no Ascend kernel";
#else
  const char* why = "global_norm: got Ascend arrays, but this build has no Ascend kernels (see boost_ext.build_info())";
#endif
  CHECK_THROWS(global_norm({}, {elsewhere}, elsewhere), std::runtime_error, why);
}

void test_elements(const Context& context) {
  std::mt19937 random(7);
  for (std::int64_t n : kSizes) test_codes(context, n, random);
  for (DType dtype : kFloats) {
    for (std::int64_t n : kSizes) {
      test_pca(context, dtype, n, random);
      test_adasum(context, dtype, n, random);
      test_gradients(context, dtype, n, random);
      test_accumulate(context, dtype, n, random);
      test_dropout(context, dtype, n, random);
      test_dim_reduce(context, dtype, n, random);
    }
  }
}

// The threads of the ops are shared by all callers; results and memory are not.
void test_concurrent_calls() {
  std::mt19937 random(3);
  Array shared(DType::f32, 200003);
  shared.fill(random);
  Context context;
  context.threads = 3;
  const double expected = norm_of(context, shared);
  std::vector<std::thread> callers;
  std::vector<int> right(4);
  for (std::size_t c = 0; c < right.size(); ++c) {
    callers.emplace_back([&, c] {
      Array mine(DType::f32, shared.size());
      for (int i = 0; i < 20; ++i) {
        mine.copy(shared);
        const bool found = unscale_and_find(context, {mine.view()}, 2)[0].found();
        right[c] += !found && norm_of(context, mine) == 2 * expected;
      }
    });
  }
  for (std::thread& t : callers) t.join();
  for (int r : right) CHECK(r == 20);
}

#if defined(__x86_64__)
constexpr unsigned kFlush = 0x8040;
unsigned modes() { return _mm_getcsr() & 0xffc0U; }
void set_modes(unsigned modes) { _mm_setcsr(modes); }
#elif defined(__aarch64__)
constexpr std::uint64_t kFlush = 1U << 24;
std::uint64_t modes() {
  std::uint64_t r;
  asm volatile("mrs %0, fpcr" : "=r"(r));
  return r;
}
void set_modes(std::uint64_t modes) { asm volatile("msr fpcr, %0" : : "r"(modes)); }
#endif

// MindSpore's graphs call from threads that flush subnormal numbers. A worker inherits the modes of who starts it.
void test_calls_of_a_thread_that_flushes() {
  const auto before = modes();
  for (DType dtype : kFloats) {
    const double tiny = std::ldexp(1.0, dtype == DType::f16 ? -20 : -130);
    Array grads(dtype, 300001), sums(DType::f32, 300001);
    grads.fill(tiny);
    sums.fill(0);
    Context context;
    context.threads = 4;
    set_modes(before | kFlush);
    accumulate(context, {sums.view()}, {grads.view()}, 1, false);
    const bool left_alone = modes() == (before | kFlush);
    set_modes(before);
    CHECK(left_alone);
    std::int64_t kept = 0;
    for (std::int64_t i = 0; i < sums.size(); ++i) kept += sums.get(i) == tiny;
    CHECK(kept == sums.size());
  }
}

}  // namespace
}  // namespace native

int main() {
  using namespace native;
  for (const std::string& isa : boost_ext::cpu_features()) {
    boost_ext::set_isa(isa);
    test_calls_of_a_thread_that_flushes();
    for (int threads : {1, 3}) {
      boost_ext::Context context;
      context.threads = threads;
      test_elements(context);
    }
    for (std::int64_t k : {1, 2, 15, 16, 17, 33}) test_small_matrices(k);
  }
  test_loss_scale();
  test_refusals();
  test_concurrent_calls();
  test_conv2d();
  test_doors();
  test_adafactor_step();
  test_apollo_step();
  test_muon_step();
  test_optimizer_step();
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 ? 0 : 1;
}
