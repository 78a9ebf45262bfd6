// Products of large matrices by cuBLAS, where the process or the machine has it. It is looked for when the first one
// comes: neither to build nor to start is anything of it needed.
#pragma once

#include <mutex>

#include "common.cuh"

namespace boost_ext::cuda {

// A matrix with a smaller side is one of many in a launch of our own kernels.
constexpr std::int64_t kLeastSide = 128;

// Whether cuBLAS multiplies matrices whose sides are at least `least` and at most `most`.
bool is_for_blas(std::int64_t least, std::int64_t most);

// Matrices in rows that begin `stride` elements apart, the first elements of two matrices `next` apart.
template <class T> struct Batch {
  T* first;
  std::int64_t stride, next;
  bool transposed = false;
};

// c <- factor * a b + kept * c. With kept = 0 c is not read.
template <class T> struct Gemm {
  std::int64_t rows, inner, columns;  // of a: rows by inner, of b: inner by columns, each after the transposition
  Batch<const T> a, b;
  Batch<T> c;  // apart from a and b
  std::int64_t count = 1;
  T factor = 1, kept = 0;
};

// cuBLAS on the context's stream, with memory of its own, until the object ends: what else it would use depends on the
// stream, and could not be captured in a graph. The context's device is the current one.
class Blas {
 public:
  // allow_tf32: of float32 factors may be rounded to TF32, for tensor cores.
  explicit Blas(const Context& context, bool allow_tf32 = false);
  void multiply(const Gemm<float>& g) const;
  void multiply(const Gemm<double>& g) const;

 private:
  WorkMemory memory_;  // goes back without the lock
  std::unique_lock<std::mutex> lock_;
  void* handle_;
};

}  // namespace boost_ext::cuda
