// Tiles of products of matrices. The left factor lies in rows or in panels, the right one in panels: of kTileColumns
// columns each, row by row. A panel of kSlab rows stays in the first cache while tiles of the product stay in
// registers. An element of a product is the sum of at most kSlab products, each rounded together with the sum so far,
// in the order of the rows; callers add these sums in order. So the bits depend on no instruction set and no size of a
// tile.
#pragma once

#include "cpu/image_rows.h"

namespace boost_ext::cpu::BOOST_EXT_ISA {

constexpr std::int64_t kSlab = 128;
#if defined(__AVX512F__)
constexpr int kTileRows = 8;
#elif defined(__AVX2__)
constexpr int kTileRows = 6;  // 12 of 16 registers hold sums; if 8 did, a multiplication would wait for one before it
#else
constexpr int kTileRows = 4;
#endif
constexpr int kTileVectors = kWidth >= 8 ? 2 : 4;

// fused() where there is no such instruction, which is far slower: x86 had none before 2013.
#if !defined(BOOST_EXT_FUSED)
// Of lanes that were float32. Rounded to odd, so that a rounding to float32 after it is that of the exact sum (Boldo &
// Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd", 2008).
BOOST_EXT_INLINE Vd fused_to_odd(Vd a, Vd b, Vd c) {
  using Vl __attribute__((vector_size(kWidth * 4))) = std::uint64_t;
  const Vd product = a * b;  // exact
  const Vd sum = product + c, rest = sum - product;
  const Vd error = (product - (sum - rest)) + (c - rest);
  const Vl bits = reinterpret_cast<Vl>(sum);
  const Vl below = (reinterpret_cast<Vl>(error) ^ bits) >> 63;  // 1 where the exact sum is nearer to zero
  const Vl step = (1 - 2 * below) & ((bits & 1) - 1);           // of even sums alone
  return reinterpret_cast<Vd>(bits + (step & reinterpret_cast<Vl>((error > 0) | (error < 0))));
}
BOOST_EXT_INLINE Vf fused(Vf a, Vf b, Vf c) {
  const Vd low = fused_to_odd(widen_low(a), widen_low(b), widen_low(c));
  const Vd high = fused_to_odd(widen_high(a), widen_high(b), widen_high(c));
  // By conversions of vectors: GCC 12 leaves out the rounding of single lanes between two calls.
  const HalfVf first = __builtin_convertvector(low, HalfVf), second = __builtin_convertvector(high, HalfVf);
  return Vf{first[0], first[1], second[0], second[1]};
}
BOOST_EXT_INLINE Vd fused(Vd a, Vd b, Vd c) {
  return Vd{__builtin_fma(a[0], b[0], c[0]), __builtin_fma(a[1], b[1], c[1])};
}
#endif

BOOST_EXT_INLINE Vf vector_at(const float* p) { return *reinterpret_cast<const UnalignedVf*>(p); }
BOOST_EXT_INLINE Vd vector_at(const double* p) { return *reinterpret_cast<const UnalignedVd*>(p); }
BOOST_EXT_INLINE void put(float* p, Vf v) { *reinterpret_cast<UnalignedVf*>(p) = v; }
BOOST_EXT_INLINE void put(double* p, Vd v) { *reinterpret_cast<UnalignedVd*>(p) = v; }

template <class T> using VectorOf = decltype(vector_at(static_cast<const T*>(nullptr)));
template <class T> constexpr int kLanesOf = static_cast<int>(sizeof(VectorOf<T>) / sizeof(T));
template <class T> constexpr int kTileColumns = kTileVectors * kLanesOf<T>;
// Rows of a tile whose left factor lies in panels.
constexpr int kPanelRows = kTileColumns<double> % kTileRows == 0 ? kTileRows : 4;
static_assert(kTileColumns<float> % kLanes == 0 && kTileColumns<double> % kPanelRows == 0);

// Columns up to the end of the last panel.
template <class T> constexpr std::int64_t padded(std::int64_t n) { return up_to(kTileColumns<T>, n); }

template <class T, int kRows = kTileRows> using Tile = VectorOf<T>[kRows][kTileVectors];

// tile[m][n] = sum over k < count of a[m * kRow + k * kStep] * b[k][n], where b is a panel.
template <int kRow, int kStep, class T, int kRows>
BOOST_EXT_INLINE void multiply_tile(const T* a, const T* b, std::int64_t count, Tile<T, kRows>& tile) {
  using V = VectorOf<T>;
  V sums[kRows][kTileVectors] = {};
  for (std::int64_t k = 0; k < count; ++k, a += kStep, b += kTileColumns<T>) {
    V right[kTileVectors];
    BOOST_EXT_EACH_OF(kTileVectors, v) right[v] = vector_at(b + v * kLanesOf<T>);
    BOOST_EXT_EACH_OF(kRows, m) {
      const V left = a[m * kRow] - V{};
      BOOST_EXT_EACH_OF(kTileVectors, v) sums[m][v] = fused(left, right[v], sums[m][v]);
    }
  }
  BOOST_EXT_EACH_OF(kRows, m) BOOST_EXT_EACH_OF(kTileVectors, v) tile[m][v] = sums[m][v];
}

// Of functions that multiply a tile of kTileRows: they are out of line where it needs nearly all registers, or callers
// would keep numbers of their own in these, and the compiler a part of the tile in memory.
#if defined(__AVX2__) && !defined(__AVX512F__)
#define BOOST_EXT_TILE __attribute__((noinline))
#else
#define BOOST_EXT_TILE BOOST_EXT_INLINE
#endif

// To where a product begins, in rows of `stride`; the first slab writes, later ones add.
BOOST_EXT_INLINE void add_tile(const Tile<float>& tile, bool first, float* to, std::int64_t stride) {
  BOOST_EXT_EACH_OF(kTileRows, m) BOOST_EXT_EACH_OF(kTileVectors, v) {
    float* const at = to + m * stride + v * kLanesOf<float>;
    put(at, first ? tile[m][v] : vector_at(at) + tile[m][v]);
  }
}

}  // namespace boost_ext::cpu::BOOST_EXT_ISA
