// Convolutions, their gradients and products of matrices on exactly sized arrays, beside sums of float64.
#include <algorithm>
#include <vector>

#include "harness.h"
#include "ops/conv2d.h"
#include "ops/matmul.h"

namespace native {

void test_conv2d();

namespace {

using namespace boost_ext;

struct Case {
  Patches p;
  std::int64_t groups, outputs;
};

// n, c, h, w; kernel, stride and dilation; padding before; positions.
const Case kCases[] = {
    {{3, 4, 5, 7, 3, 3, 1, 1, 1, 1, 1, 1, 5, 7}, 4, 4},
    {{2, 4, 9, 11, 3, 2, 2, 1, 1, 3, 1, 0, 5, 8}, 2, 10},
    {{1, 3, 6, 6, 2, 2, 3, 3, 1, 1, 0, 0, 2, 2}, 1, 5},
    {{2, 16, 9, 7, 3, 3, 1, 1, 1, 1, 1, 1, 9, 7}, 1, 18},
    {{1, 17, 1, 1, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1}, 1, 33},
    {{3, 18, 15, 14, 3, 3, 1, 1, 1, 1, 2, 0, 17, 12}, 1, 16},   // two slabs of tiles
    {{2, 16, 4, 5, 3, 3, 1, 1, 1, 1, 0, 2, 9, 3}, 1, 17},       // rows that see zeros alone, columns that none sees
    {{1, 342, 23, 24, 3, 3, 1, 1, 1, 1, 1, 1, 23, 24}, 1, 16},  // more tiles than the cache holds, slabs of channels
    {{31, 16, 15, 15, 3, 3, 1, 1, 1, 1, 1, 1, 15, 15}, 1, 16},  // ranges of tiles
    {{0, 16, 5, 5, 3, 3, 1, 1, 1, 1, 0, 0, 3, 3}, 1, 16},       // no images
    {{2, 16, 0, 3, 3, 3, 1, 1, 1, 1, 2, 1, 2, 3}, 1, 16},       // empty images
    {{2, 16, 2, 2, 3, 3, 1, 1, 1, 1, 0, 0, 0, 0}, 1, 16},       // no positions
    {{2, 40, 9, 7, 1, 1, 1, 1, 1, 1, 0, 0, 9, 7}, 1, 33},       // products: pixels side by side
    {{3, 36, 5, 5, 1, 1, 2, 2, 1, 1, 0, 0, 3, 3}, 1, 35},       // and every other one
    {{2, 70, 5, 6, 3, 2, 2, 1, 2, 3, 1, 2, 2, 5}, 2, 66},       // planes
    {{1, 130, 4, 3, 2, 2, 3, 3, 1, 1, 0, 0, 1, 1}, 1, 9},       // pixels that no position sees, slabs of weights
    {{9, 70, 90, 90, 3, 3, 2, 2, 1, 1, 0, 1, 44, 45}, 1, 20},   // some images after the other
};

// Sums of products and of their absolute values.
struct Sums {
  explicit Sums(const Array& of) : sum(static_cast<std::size_t>(of.size())), large(sum.size()) {}
  void add(std::int64_t i, double x) {
    sum[static_cast<std::size_t>(i)] += x;
    large[static_cast<std::size_t>(i)] += std::fabs(x);
  }
  // If `narrow`, of factors that were rounded to bfloat16, some once they were added up.
  bool are(const Array& got, bool narrow) const {
    const double largest = large.empty() ? 0 : *std::max_element(large.begin(), large.end());
    bool right = true;
    for (std::int64_t i = 0; i < got.size(); ++i) {
      const double expected = sum[static_cast<std::size_t>(i)];
      right = right && (narrow ? std::fabs(got.get(i) - expected) <= 0x1p-6 * largest
                               : close(got, i, expected, large[static_cast<std::size_t>(i)]));
    }
    return right;
  }
  std::vector<double> sum, large;
};

std::vector<double> values(const Array& array) {
  std::vector<double> v;
  for (std::int64_t i = 0; i < array.size(); ++i) v.push_back(array.get(i));
  return v;
}

void test_case(const Case& of) {
  const Patches& p = of.p;
  const std::int64_t images = p.n * p.c * p.h * p.w, results = p.n * of.outputs * p.oh * p.ow;
  const std::int64_t channels = p.c / of.groups, outputs = of.outputs / of.groups;
  std::vector<std::int32_t> patches;
  for (std::int64_t v : {p.n, p.c, p.h, p.w, p.kh, p.kw, p.sh, p.sw, p.dh, p.dw, p.top, p.left, p.oh, p.ow}) {
    patches.push_back(static_cast<std::int32_t>(v));
  }
  std::mt19937 random(7);
  Array x(DType::f32, images), dy(DType::f32, results);
  Array w(DType::f32, of.outputs * channels * p.kh * p.kw, of.outputs);
  x.fill(random);
  dy.fill(random);
  w.fill(random);

  const std::vector<double> from = values(x), weights = values(w), grads = values(dy);
  Sums y_sums(dy), dx_sums(x), dw_sums(w);
  const auto add = [&](std::int64_t to, std::int64_t seen, std::int64_t weight) {
    const double a = from[static_cast<std::size_t>(seen)], b = weights[static_cast<std::size_t>(weight)];
    const double g = grads[static_cast<std::size_t>(to)];
    y_sums.add(to, a * b);
    dx_sums.add(seen, g * b);
    dw_sums.add(weight, g * a);
  };
  for (std::int64_t to = 0; to < results; ++to) {
    const std::int64_t column = to % p.ow, row = to / p.ow % p.oh, o = to / (p.ow * p.oh) % of.outputs;
    const std::int64_t first = (to / (p.ow * p.oh * of.outputs) * of.groups + o / outputs) * channels;
    for (std::int64_t t = 0; t < channels * p.kh * p.kw; ++t) {
      const std::int64_t i = row * p.sh + t / p.kw % p.kh * p.dh - p.top, j = column * p.sw + t % p.kw * p.dw - p.left;
      if (i < 0 || i >= p.h || j < 0 || j >= p.w) continue;
      add(to, ((first + t / (p.kh * p.kw)) * p.h + i) * p.w + j, o * channels * p.kh * p.kw + t);
    }
  }

  std::vector<Array> found_before[2];  // by each precision
  each_way([&](const Context& context) {
    std::vector<Array>& before = found_before[context.narrow_products];
    std::vector<Array> found;
    found.emplace_back(DType::f32, results);
    found.emplace_back(DType::f32, images);
    found.emplace_back(DType::f32, w.size(), of.outputs);
    conv2d(context, x.view(), w.view(), patches, of.groups, found[0].view());
    conv2d_input_gradient(context, dy.view(), w.view(), patches, of.groups, found[1].view());
    conv2d_weight_gradient(context, dy.view(), x.view(), patches, of.groups, found[2].view());
    if (before.empty()) {
      CHECK(y_sums.are(found[0], context.narrow_products));
      CHECK(dx_sums.are(found[1], context.narrow_products));
      CHECK(dw_sums.are(found[2], context.narrow_products));
      before = std::move(found);
      return;
    }
    for (std::size_t k = 0; k < 3; ++k) CHECK(found[k].same_bits(before[k]));
  });
}

// Around tiles, slabs and blocks, with all factors transposed and not.
void test_product(std::int64_t count, std::int64_t m, std::int64_t k, std::int64_t n) {
  const std::vector<std::int32_t> sizes{static_cast<std::int32_t>(count), static_cast<std::int32_t>(m),
                                        static_cast<std::int32_t>(k), static_cast<std::int32_t>(n)};
  for (int flags = 0; flags < 4; ++flags) {
    const bool is_a = flags % 2 == 1, is_b = flags / 2 == 1;
    std::mt19937 random(3);
    Array a(DType::f32, count * m * k), b(DType::f32, count * k * n);
    a.fill(random);
    b.fill(random);
    Sums sums(Array(DType::f32, count * m * n));
    for (std::int64_t to = 0; to < count * m * n; ++to) {
      const std::int64_t i = to / n % m, j = to % n, item = to / (m * n) * k;
      for (std::int64_t t = 0; t < k; ++t) {
        const std::int64_t left = is_a ? (item + t) * m + i : item * m + i * k + t;
        const std::int64_t right = is_b ? item * n + j * k + t : (item + t) * n + j;
        sums.add(to, a.get(left) * b.get(right));
      }
    }
    std::vector<Array> found_before[2];
    each_way([&](const Context& context) {
      std::vector<Array>& before = found_before[context.narrow_products];
      Array out(DType::f32, count * m * n);
      matmul(context, a.view(), b.view(), sizes, is_a, is_b, out.view());
      CHECK(before.empty() ? sums.are(out, context.narrow_products) : out.same_bits(before[0]));
      if (before.empty()) before.push_back(std::move(out));
    });
  }
}

}  // namespace

void test_conv2d() {
  for (const Case& of : kCases) test_case(of);
  test_product(1, 9, 131, 33);
  test_product(3, 5, 7, 4);
  test_product(1, 260, 3, 515);
}

}  // namespace native
