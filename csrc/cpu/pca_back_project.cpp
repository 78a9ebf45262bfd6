#include "ops/pca_back_project.h"

#include "cpu/projection.h"

namespace boost_ext::cpu::BOOST_EXT_ISA {
namespace {

constexpr std::int64_t kBlock = 4096;
constexpr std::int64_t kCodeBlock = 16384;  // as many bytes of a row
// Rows of P that share one visit to the sums: many streams at once keep the memory busy.
constexpr int kRows = 8;
// Bytes to prefetch ahead: far enough for the memory to answer, near enough for the lines of all rows to stay in the
// first-level cache.
constexpr std::int64_t kAhead = 1024;
constexpr std::int64_t kCodesAhead = 512;

// sums[j][i] += sum over R rows of v[j][r] * row_r[i]; one addition a row, in order.
template <int J, int R, class T>
BOOST_EXT_INLINE void accumulate(FloatRows<T> rows, const float* const* v, float* const* sums, std::int64_t count,
                                 bool first) {
  float w[J][R];
  for (int j = 0; j < J; ++j) std::memcpy(w[j], v[j], sizeof w[j]);
  const auto columns = [&](auto io, std::int64_t i) BOOST_EXT_INLINE_LAMBDA {
    F acc[J];
    for (int j = 0; j < J; ++j) acc[j] = first ? F{} : io.load(sums[j] + i);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const T* p = rows.p + r * rows.stride + i;
      if (sizeof(T) == 4 || i % (2 * kLanes) == 0) __builtin_prefetch(p + kAhead / sizeof(T));  // once a cache line
      const F x = io.load(p);
      for (int j = 0; j < J; ++j) acc[j] = acc[j] + w[j][r] * x;
    }
    for (int j = 0; j < J; ++j) io.store(sums[j] + i, acc[j]);
  };
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) columns(Full{}, i);
  if (i < count) columns(Part{count - i}, i);
}

template <int J, int R>
BOOST_EXT_INLINE void accumulate(CodeRows rows, const float* const* v, float* const* sums, std::int64_t count,
                                 bool first) {
  each_block(
      rows.column, count,
      [&](std::int64_t b, std::int64_t i, std::int64_t end) BOOST_EXT_INLINE_LAMBDA {
        // Where these rows end for this call, the next ones' begin is wanted.
        prefetch_block<R>(rows, i, i + kCodesAhead < count ? kCodesAhead : R * rows.stride + kCodesAhead - count);
        float w[J][R];
        for (int j = 0; j < J; ++j) {
          for (int r = 0; r < R; ++r) w[j][r] = v[j][r] * rows.scale[r * rows.blocks + b];
        }
        for (; i < end; i += kLanes) {
          F acc[J];
          for (int j = 0; j < J; ++j) acc[j] = first ? F{} : load(sums[j] + i);
#pragma GCC unroll 8
          for (int r = 0; r < R; ++r) {
            const F x = load(rows.p + r * rows.stride + i);
            for (int j = 0; j < J; ++j) acc[j] = acc[j] + w[j][r] * x;
          }
          for (int j = 0; j < J; ++j) store(sums[j] + i, acc[j]);
        }
      },
      [&](std::int64_t b, std::int64_t i, std::int64_t cut, std::int64_t left) BOOST_EXT_INLINE_LAMBDA {
        F acc[J];
        for (int j = 0; j < J; ++j) acc[j] = first ? F{} : load_left(sums[j] + i, left);
        for (int r = 0; r < R; ++r) {
          const F scale = scales_across(rows.scale + r * rows.blocks, b, cut, left);
          const F x = load_left(rows.p + r * rows.stride + i, left);
          for (int j = 0; j < J; ++j) acc[j] = acc[j] + (v[j][r] * scale) * x;
        }
        for (int j = 0; j < J; ++j) {
          if (left < kLanes)
            Part{left}.store(sums[j] + i, acc[j]);
          else
            store(sums[j] + i, acc[j]);
        }
      });
}

template <int J, class Rows>
BOOST_EXT_INLINE void block(Rows rows, std::int64_t k, const float* const* vectors, float* const* sums,
                            std::int64_t count) {
  const float* v[J];
  std::int64_t r = 0;
  for (; r + kRows <= k; r += kRows) {
    for (int j = 0; j < J; ++j) v[j] = vectors[j] + r;
    accumulate<J, kRows>(rows.at(r, 0), v, sums, count, r == 0);
  }
  for (; r < k; ++r) {
    for (int j = 0; j < J; ++j) v[j] = vectors[j] + r;
    accumulate<J, 1>(rows.at(r, 0), v, sums, count, r == 0);
  }
}

}  // namespace

void pca_back_project(const Context& context, const View& P, const float* scale, Tensors vectors, Tensors out,
                      std::int64_t tensors, std::int64_t n) {
  const Tensors first(out.data, tensors);
  Blocks blocks(first, P.dtype == DType::i8 ? kCodeBlock : kBlock);
  Scratch<std::int64_t> column(tensors);
  for (std::int64_t t = 0, at = 0; t < tensors; at += first[t++].size) column[t] = at;

  blocks.run(
      context.threads,
      [&](Block b) {
        alignas(64) float buffer[2][kCodeBlock];
        float* const sums[2] = {buffer[0], buffer[1]};
        with_rows(P, scale, n, [&](auto rows) BOOST_EXT_INLINE_LAMBDA {
          const auto at = rows.at(0, column[b.tensor] + b.begin);
          for (std::int64_t j = 0; j < vectors.count; j += 2) {  // a second pair finds the block of P in the cache
            const bool pair = j + 1 < vectors.count;
            const float* const v[2] = {static_cast<const float*>(vectors[j].data),
                                       static_cast<const float*>(vectors[pair ? j + 1 : j].data)};
            if (pair)
              block<2>(at, P.rows, v, sums, b.count);
            else
              block<1>(at, P.rows, v, sums, b.count);
            for (int i = 0; i < (pair ? 2 : 1); ++i) {
              typed(out[(j + i) * tensors + b.tensor], [&](auto* target) BOOST_EXT_INLINE_LAMBDA {
                sweep(b.count, [&](auto io, std::int64_t e, auto)
                                   BOOST_EXT_INLINE_LAMBDA { io.store(target + b.begin + e, io.load(sums[i] + e)); });
              });
            }
          }
        });
      },
      P.rows);
}

}  // namespace boost_ext::cpu::BOOST_EXT_ISA
