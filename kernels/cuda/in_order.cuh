// Sums in float64 in the order in which the CPU adds, so that they have its bits: of vectors as long as a subspace has
// dimensions, where that costs little.
#pragma once

#include "common.cuh"

namespace boost_ext::cuda {

// sum of term(i), i = 0 .. n - 1, by a block of kThreads threads; the result is thread 0's. Each term is asked for
// once.
template <class Term> BOOST_EXT_DEVICE double sum_in_order(std::int64_t n, Term term) {
  __shared__ double terms[kThreads];
  double sum = 0;
  for (std::int64_t begin = 0; begin < n; begin += kThreads) {
    const std::int64_t i = begin + threadIdx.x;
    __syncthreads();  // thread 0 may still read the last terms
    terms[threadIdx.x] = i < n ? term(i) : 0;
    __syncthreads();
    if (threadIdx.x != 0) continue;
    const int count = n - begin < kThreads ? static_cast<int>(n - begin) : kThreads;
#pragma unroll 8
    for (int t = 0; t < count; ++t) sum += terms[t];
  }
  return sum;
}

constexpr int kRowsTogether = 16;  // of a matrix, whose loads are in flight at once

// out[i] = sum over j, in order, of x[j] * B[j, i], of a symmetric (k, k) matrix: a thread i. Zeros behind the last row
// change no bit, since no sum is -0.
template <class T> __global__ void multiply_in_order(const T* B, const T* x, std::int64_t k, double* out) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kWarp + threadIdx.x;
  if (i >= k) return;
  double sum = 0;
  for (std::int64_t begin = 0; begin < k; begin += kRowsTogether) {
    T factor[kRowsTogether], row[kRowsTogether];
#pragma unroll
    for (int r = 0; r < kRowsTogether; ++r) {
      const std::int64_t j = begin + r;
      factor[r] = j < k ? x[j] : T{0};
      row[r] = j < k ? B[j * k + i] : T{0};
    }
#pragma unroll
    for (int r = 0; r < kRowsTogether; ++r) sum += static_cast<double>(factor[r]) * static_cast<double>(row[r]);
  }
  out[i] = sum;
}

template <class T> void multiply(const Context& context, const T* B, const T* x, std::int64_t k, double* out) {
  launch(context, multiply_in_order<T>, (k + kWarp - 1) / kWarp, kWarp, B, x, k, out);
}

}  // namespace boost_ext::cuda
