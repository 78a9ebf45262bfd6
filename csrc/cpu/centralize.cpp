#include "ops/centralize.h"

#include <cstring>

#include "cpu/parallel.h"

namespace boost_ext::cpu::BOOST_EXT_ISA {
namespace {

template <class T> BOOST_EXT_INLINE void centralize_row(const T* row, T* out, std::int64_t n) {
  const double total = sum_of(n, [&](auto io, std::int64_t i) BOOST_EXT_INLINE_LAMBDA { return io.load(row + i); });
  const F mean = all(static_cast<float>(total / static_cast<double>(n)));
  sweep(n, [&](auto io, std::int64_t i, auto) BOOST_EXT_INLINE_LAMBDA { io.store(out + i, io.load(row + i) - mean); });
}

// A tensor without a second axis has no mean to subtract: one row, which is copied.
bool is_matrix(const View& v) { return v.ndim >= 2; }
std::int64_t rows_of(const View& v) { return is_matrix(v) ? v.rows : 1; }

}  // namespace

void centralize(const Context& context, Tensors grads, Tensors out) {
  // Here a unit of work is a row: the mean needs all of it, and the second visit finds it in the cache.
  Scratch<std::int64_t> first(grads.count + 1);
  std::int64_t elements = first[0] = 0;
  for (std::int64_t t = 0; t < grads.count; ++t) {
    first[t + 1] = first[t] + rows_of(grads[t]);
    elements += grads[t].size;
  }
  on_threads(context.threads, 2 * elements, first[grads.count], [&](std::int64_t begin, std::int64_t end) {
    std::int64_t t = 0;
    for (std::int64_t r = begin; r < end; ++r) {
      while (first[t + 1] <= r) ++t;
      const std::int64_t n = grads[t].size / rows_of(grads[t]);
      typed(grads[t], [&](auto* p) BOOST_EXT_INLINE_LAMBDA {
        auto* to = static_cast<decltype(p)>(out[t].data);
        const std::int64_t at = (r - first[t]) * n;
        if (is_matrix(grads[t]))
          centralize_row(p + at, to + at, n);
        else if (to != p)
          std::memcpy(to, p, static_cast<std::size_t>(n) * sizeof(*p));
      });
    }
  });
}

}  // namespace boost_ext::cpu::BOOST_EXT_ISA
