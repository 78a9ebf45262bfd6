// The C functions that MindSpore's ops.Custom calls, called as it does.
#include <initializer_list>
#include <vector>

#include "harness.h"

#define DOOR(name) extern "C" int boost_ext_##name(int, void**, int*, std::int64_t**, const char**, void*, void*)

DOOR(pca_project);
DOOR(pca_back_project);
DOOR(subspace_point);
DOOR(bfgs_update);
DOOR(adasum_part_pack);
DOOR(adasum_part_pack_difference);
DOOR(adasum_part_keep);
DOOR(adasum_part_apply);
DOOR(unscale_and_check);
DOOR(unscale_and_check_report);
DOOR(check_and_clip);
DOOR(clip_by_global_norm);
DOOR(accumulate);
DOOR(timestamp);
DOOR(group_unscale_and_check);
DOOR(group_loss_scale_update);
DOOR(covariance);
DOOR(damped_inverse);
DOOR(loss_scale_update);
DOOR(dim_reduce_direction);
DOOR(dim_reduce_trial);
DOOR(dim_reduce_apply);
DOOR(dropout);
DOOR(dropout_key);

namespace native {
namespace {

using Door = int (*)(int, void**, int*, std::int64_t**, const char**, void*, void*);
constexpr int kRefused = 1;

struct Answer {
  int status;
  bool result;
};

// The arguments as flat lists, and after them the one output, a bool of shape (1,), if it `answers`.
Answer call(Door door, std::initializer_list<const Array*> inputs, const char* dtype_of_first = nullptr,
            bool answers = true) {
  bool result = false;
  std::vector<void*> data;
  std::vector<int> ndims;
  std::vector<std::vector<std::int64_t>> shapes;
  std::vector<const char*> dtypes;
  for (const Array* a : inputs) {
    const View v = a->view();
    data.push_back(a->data());
    shapes.push_back(v.ndim == 2 ? std::vector<std::int64_t>{v.rows, v.size / v.rows}
                                 : std::vector<std::int64_t>{v.size});
    dtypes.push_back(boost_ext::name(v.dtype));
  }
  if (answers) {
    data.push_back(&result);
    shapes.push_back({1});
    dtypes.push_back("bool");
  }
  if (dtype_of_first != nullptr) dtypes[0] = dtype_of_first;
  std::vector<std::int64_t*> extents;
  for (auto& s : shapes) {
    extents.push_back(s.data());
    ndims.push_back(static_cast<int>(s.size()));
  }
  const int count = static_cast<int>(data.size());
  const int status = door(count, data.data(), ndims.data(), extents.data(), dtypes.data(), nullptr, nullptr);
  return {status, result};
}

// A function of outputs that MindSpore allocates: the last arguments.
int status(Door door, std::initializer_list<const Array*> arrays) { return call(door, arrays, nullptr, false).status; }

Array numbers(std::initializer_list<double> list, DType dtype = DType::f32, std::int64_t rows = -1) {
  Array a(dtype, static_cast<std::int64_t>(list.size()), rows);
  std::int64_t i = 0;
  for (double x : list) a.set(i++, x);
  return a;
}

bool equal(const Array& a, std::initializer_list<double> list) {
  if (a.size() != static_cast<std::int64_t>(list.size())) return false;
  std::int64_t i = 0;
  for (double x : list) {
    if (a.get(i++) != x) return false;
  }
  return true;
}

void test_projections() {
  const Array P = numbers({1, 0, 2, 0, 1, 0}, DType::f32, 2), g = numbers({1, 2}), h = numbers({3}, DType::f16);
  const Array out = numbers({0, 0}), absent = numbers({0}, DType::b8);
  Answer a = call(boost_ext_pca_project, {&P, &g, &h, &out, &absent});
  CHECK(a.status == 0 && a.result && equal(out, {7, 2}));
  CHECK(call(boost_ext_pca_project, {&P, &g, &out, &absent}).status == kRefused);
  CHECK(call(boost_ext_pca_project, {&P}).status == kRefused);
  CHECK(call(boost_ext_pca_project, {}).status == kRefused);

  const Array v = numbers({1, 10}), w = numbers({0, 1}), x = numbers({0, 0}), y = numbers({0}, DType::bf16),
              p = numbers({0, 0}), q = numbers({0});
  a = call(boost_ext_pca_back_project, {&P, &v, &w, &x, &y, &p, &q, &absent});
  CHECK(a.status == 0 && equal(x, {1, 10}) && equal(y, {2}) && equal(p, {0, 1}) && equal(q, {0}));
  CHECK(call(boost_ext_pca_back_project, {&P, &v, &w, &x, &y, &p, &absent}).status == kRefused);
  CHECK(call(boost_ext_pca_back_project, {&P, &v, &w, &absent}).status == kRefused);

  const Array codes = numbers({10, 0, 20, 0, 10, 0}, DType::i8, 2), scale = numbers({0.5, 2}, DType::f32, 2);
  a = call(boost_ext_pca_project, {&codes, &g, &h, &out, &scale});
  CHECK(a.status == 0 && equal(out, {35, 40}));
  CHECK(call(boost_ext_pca_project, {&codes, &g, &h, &out, &absent}).status == kRefused);
  a = call(boost_ext_pca_back_project, {&codes, &v, &w, &x, &y, &p, &q, &scale});
  CHECK(a.status == 0 && equal(x, {5, 200}) && equal(y, {10}) && equal(p, {0, 20}) && equal(q, {0}));
  const Array origin = numbers({5, 6, 7, 0, 0, 0}, DType::f32, 2), flat = numbers({5, 6, 7, 0, 0, 0});
  const Array r = numbers({0, 0}), s = numbers({0}, DType::f16);
  a = call(boost_ext_subspace_point, {&P, &v, &origin, &r, &s});
  CHECK(a.status == 0 && equal(r, {6, 16}) && equal(s, {9}) && equal(origin, {5, 6, 7, 1, 10, 2}));
  CHECK(call(boost_ext_subspace_point, {&P, &v, &flat, &r, &s}).status == kRefused);
  CHECK(call(boost_ext_subspace_point, {&P, &v, &origin, &r}).status == kRefused);
  CHECK(call(boost_ext_subspace_point, {&P, &v, &origin}).status == kRefused);
}

void test_gradients() {
  const Array scale = numbers({4}), g = numbers({4, -8}), h = numbers({2}, DType::f16),
              absent = numbers({0}, DType::b8);
  Answer a = call(boost_ext_unscale_and_check, {&g, &h, &scale, &absent});
  CHECK(a.status == 0 && !a.result && equal(g, {1, -2}) && equal(h, {0.5}));
  const Array bad = numbers({1, INFINITY});
  a = call(boost_ext_unscale_and_check, {&g, &bad, &scale, &absent});
  CHECK(a.status == 0 && a.result);
  const Array zero = numbers({0}), before = numbers({0.25, -0.5});
  a = call(boost_ext_unscale_and_check, {&g, &zero, &absent});  // 1 / 0: refused, and counted as found
  CHECK(a.status == kRefused && a.result && g.same_bits(before));
  CHECK(call(boost_ext_unscale_and_check, {&scale, &absent}).status == kRefused);
  CHECK(call(boost_ext_unscale_and_check, {&g, &g, &absent}).status == kRefused);
  CHECK(call(boost_ext_unscale_and_check, {&g, &scale, &absent}, "int64").status == kRefused);
}

void test_adasum_parts() {
  const Array plan = numbers({0}, DType::f64), bf16 = numbers({1}, DType::f64);
  const Array a = numbers({3, 4}), b = numbers({5}), c = numbers({1, 2}), d = numbers({7});
  const Array vector = numbers({9, 9, 9, 9});
  CHECK(call(boost_ext_adasum_part_pack, {&plan, &vector, &a, &b}).status == 0 && equal(vector, {3, 4, 5, 0}));
  CHECK(call(boost_ext_adasum_part_pack_difference, {&plan, &vector, &a, &b, &c, &d}).status == 0 &&
        equal(vector, {2, 2, -2, 0}));
  CHECK(call(boost_ext_adasum_part_keep, {&plan, &a, &b, &c, &d}).status == 0 && equal(c, {3, 4}) && equal(d, {5}));
  const Array parts = numbers({0, 2, 1, 0}, DType::f64);  // the second half comes first
  CHECK(call(boost_ext_adasum_part_apply, {&parts, &vector, &a, &b, &c, &d}).status == 0 && equal(c, {5, 4}) &&
        equal(d, {3}));
  const Array second = numbers({0, 1}, DType::f64), beside = numbers({6}, DType::bf16);  // d is its master, once 3
  CHECK(call(boost_ext_adasum_part_keep, {&second, &c, &d, &a, &b, &beside}).status == 0 && equal(b, {6}));
  const Array of_second = numbers({0, 2, 1, 0, 1}, DType::f64);
  CHECK(call(boost_ext_adasum_part_apply, {&of_second, &vector, &a, &b, &c, &d, &beside}).status == 0 &&
        equal(d, {4}) && equal(beside, {4}));
  CHECK(call(boost_ext_adasum_part_apply, {&of_second, &vector, &a, &b, &c, &d}).status == kRefused);
  const Array third = numbers({0, 2}, DType::f64), no_parts = numbers({0, 2}, DType::f64);
  CHECK(call(boost_ext_adasum_part_keep, {&third, &c, &d, &a, &b, &beside}).status == kRefused);
  CHECK(call(boost_ext_adasum_part_apply, {&no_parts, &vector, &a, &b, &c, &d}).status == kRefused);
  const Array stored(DType::f16, 2, -1), half = numbers({1, -2}, DType::bf16), same(DType::bf16, 2, -1);
  CHECK(call(boost_ext_adasum_part_pack, {&bf16, &stored, &half}).status == 0);
  const Array zero = numbers({0, 0}, DType::bf16), whole = numbers({1, 1, 0}, DType::f64);
  CHECK(call(boost_ext_adasum_part_apply, {&whole, &stored, &zero, &same}).status == 0 && equal(same, {-1, 2}));
  CHECK(call(boost_ext_adasum_part_pack, {&plan, &stored, &half}).status == kRefused);
  CHECK(call(boost_ext_adasum_part_pack, {&a, &vector, &a}).status == kRefused);
  CHECK(call(boost_ext_adasum_part_keep, {&plan, &a, &b, &c}).status == kRefused);
}

void test_report() {
  const Array scale = numbers({4}), g = numbers({4, -8, 0}), bad = numbers({2, NAN, -INFINITY, INFINITY}, DType::f16);
  const Array report(DType::f64, 8, 2);
  Answer a = call(boost_ext_unscale_and_check_report, {&g, &bad, &scale, &report});
  CHECK(a.status == 0 && a.result && equal(g, {1, -2, 0}) && equal(report, {0, 0, -1, 2, 2, 1, 1, 0.5}));
  CHECK(call(boost_ext_unscale_and_check_report, {&g, &scale, &report}).status == kRefused);
  CHECK(call(boost_ext_unscale_and_check_report, {&g, &scale, &scale}).status == kRefused);
  CHECK(equal(g, {1, -2, 0}));
}

void test_clipping() {
  const Array limit = numbers({1}), own = numbers({2}), norm = numbers({0}), divisor = numbers({0}),
              scale = numbers({4});
  const Array g = numbers({24}), h = numbers({0, 32}, DType::f16), report(DType::f64, 8, 2);
  Answer a = call(boost_ext_check_and_clip, {&scale, &limit, &own, &report, &norm, &divisor, &g, &h});
  CHECK(a.status == 0 && !a.result && equal(norm, {5}) && equal(divisor, {20}) && equal(g, {24}));
  CHECK(equal(report, {0, 0, -1, 6, 0, 0, -1, 8}));
  CHECK(call(boost_ext_check_and_clip, {&scale, &limit, &own, &report, &norm, &divisor, &g}).status == kRefused);
  CHECK(call(boost_ext_clip_by_global_norm, {&g, &h, &limit, &own, &norm}).status == 0);
  CHECK(equal(norm, {20}) && std::fabs(g.get(0) - 1.2) < 1e-6 && std::fabs(h.get(1) - 1.6) < 1e-3);
  CHECK(call(boost_ext_clip_by_global_norm, {&g, &norm, &h, &norm}).status == kRefused);
  CHECK(call(boost_ext_clip_by_global_norm, {&g, &limit, &own, &h}).status == kRefused);
  const Array bad = numbers({NAN});
  a = call(boost_ext_check_and_clip, {&scale, &limit, &own, &report, &norm, &divisor, &g, &bad});
  CHECK(a.status == 0 && a.result && equal(divisor, {4}));
}

void test_accumulate() {
  const Array scale = numbers({4}), steps = numbers({2}), none = numbers({0}, DType::i32),
              one = numbers({1}, DType::i32);
  const Array a = numbers({NAN, INFINITY}), b = numbers({NAN}), g = numbers({8, -16}), h = numbers({4}, DType::bf16);
  CHECK(call(boost_ext_accumulate, {&scale, &steps, &none, &a, &b, &g, &h}).status == 0);
  CHECK(equal(a, {1, -2}) && equal(b, {0.5}));
  CHECK(call(boost_ext_accumulate, {&scale, &steps, &one, &a, &b, &g, &h}).status == 0);
  CHECK(equal(a, {2, -4}) && equal(b, {1}));
  CHECK(call(boost_ext_accumulate, {&scale, &steps, &one, &a, &b, &g}).status == kRefused);
  CHECK(call(boost_ext_accumulate, {&scale, &steps, &scale, &a, &g}).status == kRefused);
  CHECK(call(boost_ext_accumulate, {&scale, &steps, &one, &a, &a}).status == kRefused);
  CHECK(call(boost_ext_accumulate, {&scale, &b, &one, &g}).status == kRefused);
  CHECK(equal(a, {2, -4}) && equal(b, {1}));
}

void test_timestamp() {
  const Array stamps = numbers({0, 0}, DType::f64), first = numbers({0}, DType::i32), second = numbers({1}, DType::i32),
              flag = numbers({1}, DType::b8), third = numbers({2}, DType::i32);
  CHECK(call(boost_ext_timestamp, {&stamps, &first}).status == 0);
  CHECK(call(boost_ext_timestamp, {&stamps, &second, &flag, &first}).status == 0);
  CHECK(stamps.get(0) > 0 && stamps.get(1) >= stamps.get(0));
  CHECK(call(boost_ext_timestamp, {&stamps, &third}).status == kRefused);
  CHECK(call(boost_ext_timestamp, {&stamps}).status == kRefused);
  CHECK(call(boost_ext_timestamp, {&first, &first}).status == kRefused);
}

void test_loss_scale() {
  const Array scale = numbers({8}), counters = numbers({1, 0, 0}, DType::i32), overflow = numbers({1}, DType::b8),
              factor = numbers({2}), window = numbers({2000}, DType::i32), most = numbers({64});
  CHECK(call(boost_ext_loss_scale_update, {&scale, &counters, &overflow, &factor, &window, &most}).status == 0);
  CHECK(equal(scale, {4}) && equal(counters, {2, 1, 1}));
  CHECK(call(boost_ext_loss_scale_update, {&scale, &counters, &overflow, &factor, &factor, &most}).status == kRefused);
  CHECK(call(boost_ext_loss_scale_update, {&scale, &counters, &counters, &factor, &window, &most}).status == kRefused);
}

void test_group_loss_scale() {
  const Array groups = numbers({1, 0, 1}, DType::i32), found = numbers({9, 9, 9}, DType::i32), a = numbers({2}),
              b = numbers({4}), unused = numbers({8}), g = numbers({4, 8}), h = numbers({2}, DType::f16),
              bad = numbers({INFINITY});
  const Array report(DType::f64, 12, 3);
  const Door guard = boost_ext_group_unscale_and_check, update = boost_ext_group_loss_scale_update;
  const Answer x = call(guard, {&groups, &found, &report, &a, &b, &unused, &g, &h, &bad});
  CHECK(x.status == 0 && x.result && equal(g, {1, 2}) && equal(h, {1}) && equal(found, {0, 1, -1}));
  CHECK(equal(report, {0, 0, -1, 2, 0, 0, -1, 1, 1, 0, 0, 0}));
  CHECK(call(guard, {&groups, &found, &report, &a, &b, &unused, &g, &h}).status == kRefused);
  CHECK(call(guard, {&groups, &found, &report, &a, &b}).status == kRefused);

  const Array bound = numbers({8}), overflows = numbers({3}, DType::i32);
  CHECK(call(update, {&bound, &overflows, &found, &a, &b, &unused}).status == 0);
  CHECK(std::fabs(a.get(0) - 2 * std::exp2(1e-3)) < 1e-6 && std::fabs(b.get(0) - 4 / std::sqrt(2.0)) < 1e-6);
  CHECK(equal(unused, {8}) && equal(overflows, {4}));
  CHECK(call(update, {&bound, &overflows, &found, &a, &b}).status == kRefused);
  CHECK(call(update, {&bound, &overflows, &found}).status == kRefused);
}

void test_dim_reduce() {
  const Array B = numbers({1, 0, 0, 1}, DType::f32, 2), s = numbers({1, 1}), y = numbers({2, 2}), eps = numbers({0});
  const Answer a = call(boost_ext_bfgs_update, {&B, &s, &y, &eps});
  CHECK(a.status == 0 && a.result && equal(B, {0.75, -0.25, -0.25, 0.75}));

  const Array started = numbers({0}, DType::b8), gk = numbers({4, 8}), scale = numbers({4}), slope = numbers({0}),
              dk = numbers({0, 0}), next = numbers({0, 0, 0, 0}, DType::f32, 2);
  const Array identity = numbers({1, 0, 0, 1}, DType::f32, 2);
  const Door direction = boost_ext_dim_reduce_direction;
  CHECK(call(direction, {&identity, &s, &y, &started, &gk, &scale, &next, &dk, &eps, &slope}).status == 0);
  CHECK(equal(gk, {1, 2}) && equal(dk, {-1, -2}) && equal(slope, {-5}) && next.same_bits(identity));

  const Array step = numbers({0.5}), save = numbers({1}, DType::b8), w = numbers({1, 2}), saved = numbers({0, 0}),
              dn = numbers({2, -2});
  CHECK(call(boost_ext_dim_reduce_trial, {&w, &saved, &dn, &step, &save}).status == 0);
  CHECK(equal(saved, {1, 2}) && equal(w, {2, 1}));
  CHECK(call(boost_ext_dim_reduce_trial, {&w, &saved, &step, &save}).status == kRefused);

  const Array gamma = numbers({0.5}), alpha = numbers({2}), rho = numbers({1}), m = numbers({2, 4}),
              g = numbers({4, 4}), proj = numbers({1, 1});
  CHECK(call(boost_ext_dim_reduce_apply, {&gamma, &alpha, &rho, &scale, &m, &g, &proj, &dn}).status == 0);
  CHECK(equal(m, {1, 2}) && equal(proj, {0, 6}));
  CHECK(call(boost_ext_dim_reduce_apply, {&gamma, &alpha, &rho, &scale, &m, &g, &proj}).status == kRefused);
}

void test_curvature() {
  const Array early = numbers({1}, DType::i32), due = numbers({2}, DType::i32), batch = numbers({4}, DType::f64),
              layer = numbers({2, 2, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, DType::i32),
              index = numbers({1, 1}, DType::i32), dout = numbers({1, 2, 3, 4, 5, 6}, DType::f32, 2);
  const Array A = numbers({9, 9}, DType::f64);
  Array G = numbers({9, 9, 9}, DType::f64);
  CHECK(call(boost_ext_covariance, {&early, &layer, &batch, &index, &dout, &A, &G}).status == 0 && equal(A, {9, 9}));
  CHECK(call(boost_ext_covariance, {&due, &layer, &batch, &index, &dout, &A}).status == kRefused);
  CHECK(call(boost_ext_covariance, {&due, &batch, &batch, &index, &dout, &A, &G}).status == kRefused);
  CHECK(call(boost_ext_covariance, {&due, &layer, &batch, &index, &dout, &A, &G}).status == kRefused);  // G: a diagonal
  CHECK(equal(A, {0, 0.5}) && equal(G, {9, 9, 9}));

  const Array skip = numbers({1}, DType::b8), go = numbers({0}, DType::b8), every = numbers({2}, DType::i32),
              own = numbers({2}, DType::f64), scale = numbers({2}), damping = numbers({0.25, 0.0625}),
              inverse_a = numbers({7, 7}), inverse_g = numbers({7, 7, 7});
  const Array* const steps[] = {&early, &due};
  for (const Array* step : steps) {
    const Array& flag = step == &due ? skip : go;
    CHECK(call(boost_ext_damped_inverse, {step, &flag, &every, &own, &scale, &damping, &A, &G, &inverse_a, &inverse_g})
              .status == 0);
    CHECK(equal(inverse_a, {7, 7}) && equal(inverse_g, {7, 7, 7}));
  }
  G.set(0, 12), G.set(1, 0), G.set(2, 28);  // over 16, the square of both scales; the last damping, 1 / 4
  const Answer a =
      call(boost_ext_damped_inverse, {&due, &go, &every, &own, &scale, &damping, &A, &G, &inverse_a, &inverse_g});
  CHECK(a.status == 0 && a.result && equal(inverse_a, {4, 1 / 0.75f}) && equal(inverse_g, {1, 4, 0.5}));
  CHECK(call(boost_ext_damped_inverse, {&due, &go, &every, &own, &scale, &damping, &A, &G, &inverse_a}).status ==
        kRefused);
}

void test_dropout() {
  const Array state = numbers({7, 0, 3, 0}, DType::i32), key = numbers({0, 0, 0, 0}, DType::i32),
              stream = numbers({5}, DType::i32), x = numbers({1, 2, 3}), y = numbers({0, 0, 0});
  CHECK(status(boost_ext_dropout_key, {&state, &stream, &key}) == 0);
  CHECK(equal(key, {7, 0, 3, 5}) && equal(state, {7, 0, 4, 0}));
  CHECK(status(boost_ext_dropout_key, {&x, &stream, &key}) == kRefused);
  const Array none = numbers({0}, DType::f64), all = numbers({1}, DType::f64), rows = numbers({0}, DType::b8);
  CHECK(status(boost_ext_dropout, {&x, &key, &none, &rows, &y}) == 0 && equal(y, {1, 2, 3}));
  CHECK(status(boost_ext_dropout, {&x, &key, &all, &rows, &y}) == 0 && equal(y, {0, 0, 0}));
  CHECK(status(boost_ext_dropout, {&x, &x, &all, &rows, &y}) == kRefused);
}

void test_results_without_a_place() {
  const Array x = numbers({1}), matrix = numbers({1}, DType::f32, 1), flag = numbers({0}, DType::b8),
              empty = numbers({});
  CHECK(call(boost_ext_clip_by_global_norm, {&x, &x, &x, &empty}).status == kRefused);
  const Array gk = numbers({1}), next = numbers({0}, DType::f32, 1), dk = numbers({0});
  CHECK(call(boost_ext_dim_reduce_direction, {&matrix, &x, &x, &flag, &gk, &x, &next, &dk, &x, &empty}).status ==
        kRefused);
}

}  // namespace

void test_doors() {
  test_projections();
  test_gradients();
  test_adasum_parts();
  test_report();
  test_clipping();
  test_accumulate();
  test_timestamp();
  test_loss_scale();
  test_group_loss_scale();
  test_dim_reduce();
  test_curvature();
  test_dropout();
  test_results_without_a_place();
}

}  // namespace native
