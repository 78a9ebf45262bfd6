// What the two projections share: the columns of P that belong to a tensor, and their elements in vectors of 16 bytes.
#pragma once

#include "multi_tensor.cuh"
#include "ops/pca_project.h"

namespace boost_ext::cuda {

constexpr int kVectorBytes = 16;
using Code = std::int8_t;
template <class T> constexpr bool kCodes = sizeof(T) == 1;
template <class T> constexpr int kVector = kVectorBytes / static_cast<int>(sizeof(T));  // elements

// For each tensor its columns of P, in row 0.
inline Views columns_of(const View& P, Tensors tensors) {
  Views columns(static_cast<std::size_t>(tensors.count), P);
  auto* at = static_cast<char*>(P.data);
  for (std::int64_t t = 0; t < tensors.count; ++t) {
    View& v = columns[static_cast<std::size_t>(t)];
    v.data = at;
    v.size = tensors[t].size;
    at += v.bytes();
  }
  return columns;
}

// What codes are multiplied with: a row of P after the other, a scale for each kProjectionBlock columns.
struct Scales {
  const float* data;
  std::int64_t blocks;  // of a row
  const Code *P, *end;

  Scales(const View& matrix, const float* scale, std::int64_t n)
      : data(scale),
        blocks((n + kProjectionBlock - 1) / kProjectionBlock),
        P(static_cast<const Code*>(matrix.data)),
        end(P + matrix.size) {}
  BOOST_EXT_DEVICE std::int64_t column(const Code* in_row_0) const { return in_row_0 - P; }
};

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
  } else if constexpr (kBytes == 1) {
    Vector x{};
    const auto* byte = static_cast<const unsigned char*>(p);
#pragma unroll
    for (int i = 0; i < kVectorBytes; ++i) x.word[i / 4] |= unsigned{byte[i]} << (8 * (i % 4));
    return x;
  } else {
    Vector x;
    const auto* half = static_cast<const unsigned short*>(p);
#pragma unroll
    for (int i = 0; i < 4; ++i) x.word[i] = half[2 * i] | unsigned{half[2 * i + 1]} << 16;
    return x;
  }
}

// Codes that begin at any byte are read in words of kBytes that begin at multiples of it: from fewer than kBytes before
// `begin` on, and up to kBytes behind `end`. Whether all of that belongs to P.
template <int kBytes> BOOST_EXT_DEVICE const char* word_of(const Code* code) {
  return reinterpret_cast<const char*>(code) - reinterpret_cast<std::uintptr_t>(code) % kBytes;
}
template <int kBytes> BOOST_EXT_DEVICE bool in_words(const Code* begin, const Code* end, const Scales& scales) {
  return word_of<kBytes>(begin) >= reinterpret_cast<const char*>(scales.P) && end + kBytes <= scales.end;
}

BOOST_EXT_DEVICE float from_bits(unsigned half, __half) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(half)));
}
BOOST_EXT_DEVICE float from_bits(unsigned half, __nv_bfloat16) { return __uint_as_float(half << 16); }

// Of byte i of a word; cheaper than a conversion, and exact: 2^23 + 128 + code has the bits 0x4b0000.., then that is
// taken away.
BOOST_EXT_DEVICE float from_byte(unsigned word, int i) {
  return __uint_as_float(__byte_perm(word ^ 0x80808080u, 0x4b000000u, 0x7440 + i)) - 8388736.0F;
}
BOOST_EXT_DEVICE float as_float(Code x) { return from_byte(static_cast<unsigned char>(x), 0); }

template <class T> BOOST_EXT_DEVICE float element(const Vector& x, int i) {
  if constexpr (sizeof(T) == 4)
    return __uint_as_float(x.word[i]);
  else if constexpr (kCodes<T>)
    return from_byte(x.word[i / 4], i % 4);
  else
    return from_bits(i % 2 ? x.word[i / 2] >> 16 : x.word[i / 2] & 0xffffu, T{});
}

// fn(T{}) with the type of P's elements.
template <class Fn> void with_type(DType t, Fn fn) {
  if (t == DType::f16)
    fn(__half());
  else if (t == DType::bf16)
    fn(__nv_bfloat16());
  else if (t == DType::i8)
    fn(Code());
  else
    fn(0.0F);
}

}  // namespace boost_ext::cuda
