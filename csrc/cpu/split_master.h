// Split masters, as ops/optimizer_step.h has them: a bfloat16 weight and its residual as float32, and back.
#pragma once

#include "cpu/chunks.h"
#include "cpu/optimizer_state.h"

namespace boost_ext::cpu::BOOST_EXT_ISA {

// In units of float32's last place.
BOOST_EXT_INLINE Vi load_residual(const std::int16_t* p) {
  return reinterpret_cast<Vi>(to_words(load_halves(p)) << 16) >> 16;
}
BOOST_EXT_INLINE Vi load_residual(const std::int8_t* p) {
  return reinterpret_cast<Vi>(load_bytes(reinterpret_cast<const std::uint8_t*>(p)) << 24) >> 16;
}
// Of the bits of a master; what lies above those of the residual is in the weight.
BOOST_EXT_INLINE void store_residual(std::int16_t* p, Vu bits) { store_halves(p, upper_halves(bits << 16)); }
BOOST_EXT_INLINE void store_residual(std::int8_t* p, Vu bits) {
  store_bytes(reinterpret_cast<std::uint8_t*>(p), (bits >> 8) & 0xffu);
}
BOOST_EXT_INLINE Vu as_precise_as(const std::int16_t*, Vu bits) { return bits; }
BOOST_EXT_INLINE Vu as_precise_as(const std::int8_t*, Vu bits) { return (bits + 0x80u) & ~0xffu; }

template <class R> BOOST_EXT_INLINE F joined(Full, const BFloat* weight, const R* residual) {
  F master;
  BOOST_EXT_EACH(i) {
    const Vu upper = to_words(load_halves(weight + i * kWidth)) << 16;
    const Vu sign = upper & 0x80000000u;
    const Vi magnitude = reinterpret_cast<Vi>(upper ^ sign) + load_residual(residual + i * kWidth);
    const Vi kept = magnitude > 0 ? magnitude : Vi{};  // of a weight that somebody has set to 0
    master.v[i] = reinterpret_cast<Vf>(reinterpret_cast<Vu>(kept) | sign);
  }
  return master;
}
template <class R> BOOST_EXT_INLINE F joined(Part part, const BFloat* weight, const R* residual) {
  BFloat weights[kLanes] = {};
  R residuals[kLanes] = {};
  std::memcpy(weights, weight, static_cast<std::size_t>(part.count) * sizeof(BFloat));
  std::memcpy(residuals, residual, static_cast<std::size_t>(part.count) * sizeof(R));
  return joined(Full{}, weights, residuals);
}

template <class R> BOOST_EXT_INLINE void store_parted(Full, F master, BFloat* weight, R* residual) {
  BOOST_EXT_EACH(i) {
    const Vf a = master.v[i];
    const Vu bits = as_precise_as(residual, reinterpret_cast<Vu>(a));
    store_halves(weight + i * kWidth, upper_halves(a, bits + 0x8000u));
    store_residual(residual + i * kWidth, a != a ? Vu{} : bits);
  }
}
template <class R> BOOST_EXT_INLINE void store_parted(Part part, F master, BFloat* weight, R* residual) {
  BFloat weights[kLanes];
  R residuals[kLanes];
  store_parted(Full{}, master, weights, residuals);
  std::memcpy(weight, weights, static_cast<std::size_t>(part.count) * sizeof(BFloat));
  std::memcpy(residual, residuals, static_cast<std::size_t>(part.count) * sizeof(R));
}

}  // namespace boost_ext::cpu::BOOST_EXT_ISA
