// Split masters, as ops/optimizer_step.h has them, with the bits of the CPU kernels.
#pragma once

#include "ops/optimizer_step.h"
#include "optimizer_state.cuh"

namespace boost_ext::cuda {

// Residuals of either type as the upper halves of words: a float32 is their vessel, with which nobody computes.
BOOST_EXT_DEVICE float load_residual(const void* p, DType t, std::int64_t i) {
  const unsigned upper = t == DType::i8 ? unsigned{static_cast<const std::uint8_t*>(p)[i]} << 24
                                        : unsigned{static_cast<const std::uint16_t*>(p)[i]} << 16;
  return __uint_as_float(upper);
}
BOOST_EXT_DEVICE Coming coming_residuals(const void* p, DType t, std::int64_t i, Count n, bool aligned) {
  if (t == DType::i8) return coming_codes(static_cast<const std::uint8_t*>(p) + i, n, aligned);
  return coming_pack(p, DType::bf16, i, n, aligned);
}
BOOST_EXT_DEVICE Pack residuals_of_bytes(const Raw& raw) {
  Pack x;
#pragma unroll
  for (int j = 0; j < kPack; ++j) { x.v[j] = __uint_as_float(__byte_perm(raw.word[j / 4], 0, 0x444 + (j % 4 << 12))); }
  return x;
}
BOOST_EXT_DEVICE Pack residuals_of(const Coming& coming) {
  return coming.type == DType::u8 ? residuals_of_bytes(coming.packs(2)) : coming.get();
}

BOOST_EXT_DEVICE float joined(float weight, float residual) {
  const unsigned sign = __float_as_uint(weight) & 0x80000000u;
  const int magnitude = static_cast<int>(__float_as_uint(weight) ^ sign) + (__float_as_int(residual) >> 16);
  return __uint_as_float(static_cast<unsigned>(magnitude > 0 ? magnitude : 0) | sign);  // a 0 that somebody has set
}
BOOST_EXT_DEVICE Pack joined(Pack w, const Pack& residuals) {
#pragma unroll
  for (int j = 0; j < kPack; ++j) w.v[j] = joined(w.v[j], residuals.v[j]);
  return w;
}

// Weights of bfloat16, and their residuals of type t: the upper halves of words.
struct Parted {
  Pack weights, residuals;
};
BOOST_EXT_DEVICE Parted parted(const Pack& w, DType t) {
  Parted parts;
#pragma unroll
  for (int j = 0; j < kPack; ++j) {
    unsigned bits = __float_as_uint(w.v[j]);
    const bool nan = (bits & 0x7fffffffu) > kInfBits;
    const unsigned quiet = bits | 0x400000u;
    if (t == DType::i8) bits = (bits + 0x80u) & ~0xffu;
    parts.weights.v[j] = __uint_as_float(nan ? quiet : bits + 0x8000u);
    parts.residuals.v[j] = __uint_as_float(nan ? 0 : bits << 16);
  }
  return parts;
}
BOOST_EXT_DEVICE uint2 bytes_of_residuals(const Pack& residuals) {
  unsigned bytes[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float* x = residuals.v + half * 4;
    const unsigned low = __byte_perm(__float_as_uint(x[0]), __float_as_uint(x[1]), 0x0073);
    bytes[half] = __byte_perm(low, __byte_perm(__float_as_uint(x[2]), __float_as_uint(x[3]), 0x0073), 0x5410);
  }
  return make_uint2(bytes[0], bytes[1]);
}
BOOST_EXT_DEVICE void store_parted(void* weights, void* residuals, DType t, std::int64_t i, Count n, bool aligned,
                                   const Pack& w) {
  const Parted parts = parted(w, t);
  store_upper_halves(weights, i, n, aligned, parts.weights);
  if (t == DType::i16) return store_upper_halves(residuals, i, n, aligned, parts.residuals);
  store_codes(static_cast<std::uint8_t*>(residuals) + i, n, aligned, bytes_of_residuals(parts.residuals));
}

}  // namespace boost_ext::cuda
