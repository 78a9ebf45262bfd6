// Sums over the rows of a matrix.
#pragma once

#include "cpu/parallel.h"

namespace boost_ext::cpu::BOOST_EXT_ISA {

BOOST_EXT_INLINE F narrow(D a) {
  double wide[kLanes];
  float lane[kLanes];
  store(wide, a);
  for (int i = 0; i < kLanes; ++i) lane[i] = static_cast<float>(wide[i]);
  return load(lane);
}

// out[s][j] <- sum over r of terms(io, r, j)[s]: float32 sums of 64 rows, then float64, whoever computes them. `terms`
// fills an F[kSums] for the sixteen columns from j on.
template <int kSums, class Terms>
void column_sums(int threads, std::int64_t rows, std::int64_t n, float* const (&out)[kSums], Terms terms) {
  constexpr int kGroups = 4 / kSums;  // of sixteen columns at a time
  constexpr std::int64_t kRows = 64, kColumns = kGroups * kLanes;
  on_threads(threads, kSums * rows * n, quotient_up(n, kColumns), [&](std::int64_t begin, std::int64_t end) {
    const auto strip = [&](auto io, std::int64_t j, auto groups) BOOST_EXT_INLINE_LAMBDA {
      constexpr int kCount = decltype(groups)::value;
      D all_rows[kCount][kSums] = {};
      for (std::int64_t first = 0; first < rows; first += kRows) {
        const std::int64_t last = rows - first < kRows ? rows : first + kRows;
        F some[kCount][kSums] = {};
        for (std::int64_t r = first; r < last; ++r) {
          for (int g = 0; g < kCount; ++g) {
            F term[kSums];
            terms(io, r, j + g * kLanes, term);
            for (int s = 0; s < kSums; ++s) some[g][s] = some[g][s] + term[s];
          }
        }
        for (int g = 0; g < kCount; ++g)
          for (int s = 0; s < kSums; ++s) all_rows[g][s] = all_rows[g][s] + widen(some[g][s]);
      }
      for (int g = 0; g < kCount; ++g)
        for (int s = 0; s < kSums; ++s) io.store(out[s] + j + g * kLanes, narrow(all_rows[g][s]));
    };
    for (std::int64_t c = begin; c < end; ++c) {
      std::int64_t j = c * kColumns;
      const std::int64_t stop = n - j < kColumns ? n : j + kColumns;
      if (stop - j == kColumns) {
        strip(Full{}, j, At<kGroups>{});
        continue;
      }
      for (; j + kLanes <= stop; j += kLanes) strip(Full{}, j, At<1>{});
      if (j < stop) strip(Part{stop - j}, j, At<1>{});
    }
  });
}

}  // namespace boost_ext::cpu::BOOST_EXT_ISA
