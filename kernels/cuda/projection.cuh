// What the two projections share: the columns of P that belong to a tensor, and their elements in vectors of 16 bytes.
#pragma once

#include <type_traits>
#include <vector>

#include "multi_tensor.cuh"

namespace boost_ext::cuda {

constexpr int kVectorBytes = 16;
template <class T> constexpr int kVector = kVectorBytes / static_cast<int>(sizeof(T));  // elements

// For each tensor its columns of P, in row 0.
inline std::vector<View> columns_of(const View& P, Tensors tensors) {
  std::vector<View> columns(static_cast<std::size_t>(tensors.count), P);
  auto* at = static_cast<char*>(P.data);
  for (std::int64_t t = 0; t < tensors.count; ++t) {
    View& v = columns[static_cast<std::size_t>(t)];
    v.data = at;
    v.size = tensors[t].size;
    at += v.bytes();
  }
  return columns;
}

// kVector<T> elements of P, as they lie in memory.
struct Vector {
  unsigned word[kVectorBytes / 4];
};

// p is aligned to kBytes: a row of P is so to 16 bytes only where the row before it ends there.
template <int kBytes> BOOST_EXT_DEVICE Vector load_vector(const void* p) {
  if constexpr (kBytes == 16) {
    const uint4 x = *static_cast<const uint4*>(p);
    return {{x.x, x.y, x.z, x.w}};
  } else if constexpr (kBytes == 8) {
    const uint2 low = static_cast<const uint2*>(p)[0], high = static_cast<const uint2*>(p)[1];
    return {{low.x, low.y, high.x, high.y}};
  } else if constexpr (kBytes == 4) {
    const auto* word = static_cast<const unsigned*>(p);
    return {{word[0], word[1], word[2], word[3]}};
  } else {
    Vector x;
    const auto* half = static_cast<const unsigned short*>(p);
#pragma unroll
    for (int i = 0; i < 4; ++i) x.word[i] = half[2 * i] | unsigned{half[2 * i + 1]} << 16;
    return x;
  }
}

template <class T> BOOST_EXT_DEVICE float element(const Vector& x, int i) {
  if constexpr (sizeof(T) == 4) return __uint_as_float(x.word[i]);
  const unsigned word = x.word[i / (4 / static_cast<int>(sizeof(T)))];
  const unsigned half = i % 2 ? word >> 16 : word & 0xffffu;
  if constexpr (std::is_same_v<T, __half>) return __half2float(__ushort_as_half(static_cast<unsigned short>(half)));
  return __uint_as_float(half << 16);
}

BOOST_EXT_DEVICE float as_float(float x) { return x; }
BOOST_EXT_DEVICE float as_float(__half x) { return __half2float(x); }
BOOST_EXT_DEVICE float as_float(__nv_bfloat16 x) { return __bfloat162float(x); }

// fn(T{}) with the type of P's elements.
template <class Fn> void with_type(DType t, Fn fn) {
  if (t == DType::f16)
    fn(__half());
  else if (t == DType::bf16)
    fn(__nv_bfloat16());
  else
    fn(0.0F);
}

}  // namespace boost_ext::cuda
