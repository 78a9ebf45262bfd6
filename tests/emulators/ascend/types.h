// The plain types of the emulated API: half and bfloat16 with correct rounding, enumerations, parameter structs.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#define __aicore__
#define __global__
#define __gm__
#define GM_ADDR std::uint8_t*

enum pipe_t { PIPE_S, PIPE_V, PIPE_MTE2, PIPE_MTE3, PIPE_ALL };
using event_t = std::int32_t;

namespace emulator {

inline std::uint32_t float_bits(float x) {
  std::uint32_t b;
  std::memcpy(&b, &x, sizeof b);
  return b;
}
inline float bits_float(std::uint32_t b) {
  float x;
  std::memcpy(&x, &b, sizeof x);
  return x;
}

inline float half_to_float(std::uint16_t h) {
  const int exponent = h >> 10 & 31;
  const int mantissa = h & 1023;
  const std::uint32_t sign = static_cast<std::uint32_t>(h & 0x8000) << 16;
  if (exponent == 31) return bits_float(sign | 0x7f800000 | static_cast<std::uint32_t>(mantissa) << 13);
  const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -24)
                                        : std::ldexp(static_cast<float>(1024 + mantissa), exponent - 25);
  return bits_float(sign | float_bits(magnitude));
}

// Keeps the upper bits of a mantissa; what is cut off rounds to nearest, ties to even, or is dropped.
inline std::uint32_t shift_out(std::uint32_t bits, int shift, bool nearest) {
  if (!nearest) return bits >> shift;
  const std::uint32_t half_unit = 1U << (shift - 1);
  return (bits + half_unit - 1 + (bits >> shift & 1)) >> shift;
}

inline std::uint16_t float_to_half(float x, bool nearest = true) {
  const std::uint32_t bits = float_bits(x);
  const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000);
  const std::uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return static_cast<std::uint16_t>(sign | 0x7e00);
  if (magnitude == 0x7f800000) return static_cast<std::uint16_t>(sign | 0x7c00);
  if (magnitude >= 0x47800000) return static_cast<std::uint16_t>(sign | (nearest ? 0x7c00 : 0x7bff));
  if (magnitude < 0x38800000) {  // below the least normal half
    if (magnitude < 0x33000000) return sign;
    const int shift = 126 - static_cast<int>(magnitude >> 23);
    return static_cast<std::uint16_t>(sign | shift_out((magnitude & 0x7fffff) | 0x800000, shift, nearest));
  }
  return static_cast<std::uint16_t>(sign | shift_out(magnitude - 0x38000000, 13, nearest));
}

inline std::uint16_t float_to_bfloat16(float x, bool nearest = true) {
  const std::uint32_t bits = float_bits(x);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<std::uint16_t>((bits >> 16 & 0x8000) | 0x7fc0);
  return static_cast<std::uint16_t>(shift_out(bits, 16, nearest));
}

}  // namespace emulator

struct half {
  std::uint16_t bits = 0;
  half() = default;
  half(float x) : bits(emulator::float_to_half(x)) {}  // NOLINT: as on the device
  operator float() const { return emulator::half_to_float(bits); }
};

// Storage only: the vector unit has no arithmetic for it.
struct bfloat16_t {
  std::uint16_t bits = 0;
};

namespace AscendC {

enum class TPosition : std::uint8_t { GM, VECIN, VECOUT, VECCALC };
using QuePosition = TPosition;

enum class HardEvent : std::uint8_t {
  MTE2_V,
  V_MTE2,
  V_MTE3,
  MTE3_V,
  MTE2_MTE3,
  MTE3_MTE2,
  V_S,
  S_V,
  MTE2_S,
  S_MTE2,
  MTE3_S,
  S_MTE3,
};

enum class RoundMode : std::uint8_t { CAST_NONE, CAST_RINT, CAST_TRUNC };
enum class CMPMODE : std::uint8_t { LT, GT, EQ, LE, GE, NE };
enum class SELMODE : std::uint8_t { VSEL_TENSOR_SCALAR_MODE = 1, VSEL_TENSOR_TENSOR_MODE };
enum class CacheLine : std::uint8_t { SINGLE_CACHE_LINE, ENTIRE_DATA_CACHE };
enum class DcciDst : std::uint8_t { CACHELINE_OUT };
using TEventID = std::int8_t;

struct BinaryRepeatParams {
  BinaryRepeatParams() = default;
  BinaryRepeatParams(std::uint8_t dst_block, std::uint8_t src0_block, std::uint8_t src1_block, std::uint8_t dst_repeat,
                     std::uint8_t src0_repeat, std::uint8_t src1_repeat)
      : dstBlkStride(dst_block),
        src0BlkStride(src0_block),
        src1BlkStride(src1_block),
        dstRepStride(dst_repeat),
        src0RepStride(src0_repeat),
        src1RepStride(src1_repeat) {}
  std::uint8_t dstBlkStride = 1, src0BlkStride = 1, src1BlkStride = 1;
  std::uint8_t dstRepStride = 8, src0RepStride = 8, src1RepStride = 8;
};

struct UnaryRepeatParams {
  UnaryRepeatParams() = default;
  UnaryRepeatParams(std::uint16_t dst_block, std::uint16_t src_block, std::uint8_t dst_repeat, std::uint8_t src_repeat)
      : dstBlkStride(dst_block), srcBlkStride(src_block), dstRepStride(dst_repeat), srcRepStride(src_repeat) {}
  std::uint16_t dstBlkStride = 1, srcBlkStride = 1;
  std::uint8_t dstRepStride = 8, srcRepStride = 8;
};

struct DataCopyParams {
  DataCopyParams() = default;
  DataCopyParams(std::uint16_t count, std::uint16_t length, std::uint16_t src_gap, std::uint16_t dst_gap)
      : blockCount(count), blockLen(length), srcGap(src_gap), dstGap(dst_gap) {}
  std::uint16_t blockCount = 1, blockLen = 0, srcGap = 0, dstGap = 0;
};

struct DataCopyExtParams {
  DataCopyExtParams() = default;
  DataCopyExtParams(std::uint16_t count, std::uint32_t length, std::uint32_t src_stride, std::uint32_t dst_stride,
                    std::uint32_t reserved)
      : blockCount(count), blockLen(length), srcStride(src_stride), dstStride(dst_stride), rsv(reserved) {}
  std::uint16_t blockCount = 1;
  std::uint32_t blockLen = 0, srcStride = 0, dstStride = 0, rsv = 0;
};

template <class T> struct DataCopyPadExtParams {
  DataCopyPadExtParams() = default;
  DataCopyPadExtParams(bool pad, std::uint8_t left, std::uint8_t right, T value)
      : isPad(pad), leftPadding(left), rightPadding(right), paddingValue(value) {}
  bool isPad = false;
  std::uint8_t leftPadding = 0, rightPadding = 0;
  T paddingValue{};
};

}  // namespace AscendC
