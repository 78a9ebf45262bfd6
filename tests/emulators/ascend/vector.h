// The vector unit: operations lane by lane. half is rounded after each of them.
#pragma once

#include <algorithm>

#include "copies.h"

namespace emulator {

// Which lanes: the first `lanes` of a tensor, or a mask over each of some repeats of 256 bytes.
struct Shape {
  std::int64_t lanes = 0;
  int repeats = 0;  // 0: one stretch of lanes
  const std::uint64_t* bits = nullptr;
  bool active(std::int64_t lane) const { return !bits || (bits[lane / 64] >> (lane % 64) & 1U) != 0; }
};

inline Shape by_repeats(std::uint64_t mask, std::uint8_t repeats, const std::uint64_t* bits = nullptr) {
  expect(repeats >= 1, "a vector operation: 1 to 255 repeats, got 0");
  return {static_cast<std::int64_t>(mask), repeats, bits};
}

template <class T> struct Operand {
  const AscendC::LocalTensor<T>& tensor;
  int block;  // strides in blocks of 32 bytes
  int repeat;
};

template <class T> constexpr std::int64_t kPerBlock = kBlockBytes / static_cast<std::int64_t>(sizeof(T));

template <class T> std::int64_t lane_index(const Shape& s, const Operand<T>& o, int repeat, std::int64_t lane) {
  if (s.repeats == 0) return lane;
  return (repeat * o.repeat + lane / kPerBlock<T> * o.block) * kPerBlock<T> + lane % kPerBlock<T>;
}

// The bytes that an operand covers, for the rule of aliases.
struct Extent {
  std::int64_t begin, end;
  int block, repeat;
  std::size_t size;
};

template <class T, class Touch> Extent touch(const char* op, const Shape& s, const Operand<T>& o, Touch report) {
  const auto size = static_cast<std::int64_t>(sizeof(T));
  o.tensor.aligned(op);
  if (s.repeats == 0) {
    const std::int64_t at = o.tensor.at(op, 0, s.lanes);
    report(at, s.lanes * size);
    return {at, at + s.lanes * size, 1, 8, sizeof(T)};
  }
  Extent e{o.tensor.offset(), o.tensor.offset(), o.block, o.repeat, sizeof(T)};
  for (int r = 0; r < s.repeats; ++r) {
    for (std::int64_t lane = 0; lane < s.lanes; lane += kPerBlock<T>) {
      const std::int64_t in_block = std::min(kPerBlock<T>, s.lanes - lane);
      for (std::int64_t i = 0; i < in_block; ++i) {
        if (!s.active(lane + i)) continue;
        const std::int64_t at = o.tensor.at(op, lane_index(s, o, r, lane) + i, 1);
        report(at, size);
        e.end = std::max(e.end, at + size);
      }
    }
  }
  return e;
}

// A destination is one of the sources wholly or not at all, but for an accumulator: the second source, standing still.
inline void check_alias(const char* op, const Extent& dst, const Extent& src, bool second) {
  if (dst.begin >= src.end || src.begin >= dst.end) return;
  const bool same = dst.begin == src.begin && dst.size == src.size && dst.block == src.block;
  const bool still = second && dst.repeat == 0 && src.repeat == 0;
  expect(same && dst.repeat == src.repeat && (dst.repeat != 0 || still), op,
         ": the destination overlaps a source without being it");
}

inline float widen(float x) { return x; }
inline float widen(half x) { return x; }
inline std::int16_t widen(std::int16_t x) { return x; }
inline std::int32_t widen(std::int32_t x) { return x; }

template <class T> T get(const AscendC::LocalTensor<T>& t, std::int64_t i) {
  T value;
  std::memcpy(&value, core().ub.get() + t.offset() + i * static_cast<std::int64_t>(sizeof(T)), sizeof value);
  return value;
}
template <class T> void put(const AscendC::LocalTensor<T>& t, std::int64_t i, T value) {
  std::memcpy(core().ub.get() + t.offset() + i * static_cast<std::int64_t>(sizeof(T)), &value, sizeof value);
}

inline float coarse(float x) {  // eleven bits
  return std::isfinite(x) ? bits_float(float_bits(x) & 0xffffe000) : x;
}

inline void check_shape(const char* op, const Shape& s, std::size_t size) {
  if (s.repeats == 0) return expect(s.lanes > 0, op, ": a count from 1, got ", s.lanes);
  const auto most = kRepeatBytes / static_cast<std::int64_t>(size);
  expect(s.lanes >= 1 && s.lanes <= most, op, ": a mask from 1 to ", most, ", got ", s.lanes);
  expect(s.repeats >= 1 && s.repeats <= 255, op, ": 1 to 255 repeats, got ", s.repeats);
}

// dst = f(sources), for all lanes of all repeats.
template <class D, class F, class... S>
void lanes(const char* op, const Shape& s, F f, const Operand<D>& dst, const Operand<S>&... src) {
  check_shape(op, s, std::max({sizeof(D), sizeof(S)...}));
  Instruction it(op, PIPE_V);
  [[maybe_unused]] const Extent target =
      touch(op, s, dst, [&](std::int64_t at, std::int64_t bytes) { it.writes(at, bytes); });
  [[maybe_unused]] int index = 0;
  (check_alias(op, target, touch(op, s, src, [&](std::int64_t at, std::int64_t bytes) { it.reads(at, bytes); }),
               index++ == 1),
   ...);
  it.go();
  for (int r = 0; r < std::max(1, s.repeats); ++r) {
    for (std::int64_t i = 0; i < s.lanes; ++i) {
      if (!s.active(i)) continue;
      put<D>(dst.tensor, lane_index(s, dst, r, i), f(get<S>(src.tensor, lane_index(s, src, r, i))...));
    }
  }
}

template <class T, class... Us> constexpr bool one_of = (std::is_same_v<T, Us> || ...);

}  // namespace emulator

namespace AscendC {

// The three forms of an operation of two tensors.
#define BOOST_EXT_BINARY(name, types, expression)                                                                    \
  template <class T>                                                                                                 \
  void name(const LocalTensor<T>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1,                       \
            const emulator::Shape& shape, const BinaryRepeatParams& p) {                                             \
    static_assert(types, #name ": not for this type; Cast first");                                                   \
    emulator::lanes<T>(                                                                                              \
        #name, shape,                                                                                                \
        [](T x, T y) {                                                                                               \
          const auto a = emulator::widen(x), b = emulator::widen(y);                                                 \
          return static_cast<T>(expression);                                                                         \
        },                                                                                                           \
        emulator::Operand<T>{dst, p.dstBlkStride, p.dstRepStride},                                                   \
        emulator::Operand<T>{src0, p.src0BlkStride, p.src0RepStride},                                                \
        emulator::Operand<T>{src1, p.src1BlkStride, p.src1RepStride});                                               \
  }                                                                                                                  \
  template <class T>                                                                                                 \
  void name(const LocalTensor<T>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1,                       \
            const std::int32_t& count) {                                                                             \
    name(dst, src0, src1, emulator::Shape{count, 0, nullptr}, BinaryRepeatParams());                                 \
  }                                                                                                                  \
  template <class T>                                                                                                 \
  void name(const LocalTensor<T>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1, std::uint64_t mask,   \
            std::uint8_t repeats, const BinaryRepeatParams& p) {                                                     \
    name(dst, src0, src1, emulator::by_repeats(mask, repeats), p);                                                   \
  }                                                                                                                  \
  template <class T>                                                                                                 \
  void name(const LocalTensor<T>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1, std::uint64_t mask[], \
            std::uint8_t repeats, const BinaryRepeatParams& p) {                                                     \
    name(dst, src0, src1, emulator::by_repeats(256 / sizeof(T), repeats, mask), p);                                  \
  }

#define BOOST_EXT_NUMBERS (emulator::one_of<T, half, float, std::int16_t, std::int32_t>)
#define BOOST_EXT_FLOATS (emulator::one_of<T, half, float>)
BOOST_EXT_BINARY(Add, BOOST_EXT_NUMBERS, a + b)
BOOST_EXT_BINARY(Sub, BOOST_EXT_NUMBERS, a - b)
BOOST_EXT_BINARY(Mul, BOOST_EXT_NUMBERS, a* b)
BOOST_EXT_BINARY(Div, BOOST_EXT_FLOATS, a / b)
BOOST_EXT_BINARY(Max, BOOST_EXT_NUMBERS, a > b ? a : b)
BOOST_EXT_BINARY(Min, BOOST_EXT_NUMBERS, a < b ? a : b)

// Of one tensor, and of a tensor and a scalar.
#define BOOST_EXT_UNARY(name, types, parameter, capture, expression)                                      \
  template <class T>                                                                                      \
  void name(const LocalTensor<T>& dst, const LocalTensor<T>& src parameter, const emulator::Shape& shape, \
            const UnaryRepeatParams& p) {                                                                 \
    static_assert(types, #name ": not for this type; Cast first");                                        \
    emulator::lanes<T>(                                                                                   \
        #name, shape,                                                                                     \
        [capture](T x) {                                                                                  \
          const auto a = emulator::widen(x);                                                              \
          return static_cast<T>(expression);                                                              \
        },                                                                                                \
        emulator::Operand<T>{dst, p.dstBlkStride, p.dstRepStride},                                        \
        emulator::Operand<T>{src, p.srcBlkStride, p.srcRepStride});                                       \
  }
#define BOOST_EXT_OF_ONE(name, expression)                                                                        \
  BOOST_EXT_UNARY(name, BOOST_EXT_FLOATS, , , expression)                                                         \
  template <class T> void name(const LocalTensor<T>& dst, const LocalTensor<T>& src, const std::int32_t& count) { \
    name(dst, src, emulator::Shape{count, 0, nullptr}, UnaryRepeatParams());                                      \
  }                                                                                                               \
  template <class T>                                                                                              \
  void name(const LocalTensor<T>& dst, const LocalTensor<T>& src, std::uint64_t mask, std::uint8_t repeats,       \
            const UnaryRepeatParams& p) {                                                                         \
    name(dst, src, emulator::by_repeats(mask, repeats), p);                                                       \
  }
#define BOOST_EXT_COMMA_SCALAR , const T& scalar
#define BOOST_EXT_WITH_SCALAR(name, expression)                                                                 \
  BOOST_EXT_UNARY(name, BOOST_EXT_NUMBERS, BOOST_EXT_COMMA_SCALAR, b = emulator::widen(scalar), expression)     \
  template <class T>                                                                                            \
  void name(const LocalTensor<T>& dst, const LocalTensor<T>& src, const T& scalar, const std::int32_t& count) { \
    name(dst, src, scalar, emulator::Shape{count, 0, nullptr}, UnaryRepeatParams());                            \
  }                                                                                                             \
  template <class T>                                                                                            \
  void name(const LocalTensor<T>& dst, const LocalTensor<T>& src, const T& scalar, std::uint64_t mask,          \
            std::uint8_t repeats, const UnaryRepeatParams& p) {                                                 \
    name(dst, src, scalar, emulator::by_repeats(mask, repeats), p);                                             \
  }
BOOST_EXT_OF_ONE(Abs, std::fabs(a))
BOOST_EXT_OF_ONE(Sqrt, std::sqrt(a))
BOOST_EXT_OF_ONE(Exp, std::exp(a))
// The hardware's are coarse; nobody should rely on more bits than these.
BOOST_EXT_OF_ONE(Rsqrt, emulator::coarse(1 / std::sqrt(a)))
BOOST_EXT_OF_ONE(Reciprocal, emulator::coarse(1 / a))
BOOST_EXT_WITH_SCALAR(Adds, a + b)
BOOST_EXT_WITH_SCALAR(Muls, a* b)
BOOST_EXT_WITH_SCALAR(Maxs, a > b ? a : b)
BOOST_EXT_WITH_SCALAR(Mins, a < b ? a : b)

// dst += src * scalar, rounded twice; dst may be wider than src.
template <class D, class S>
void Axpy(const LocalTensor<D>& dst, const LocalTensor<S>& src, const S& scalar, const std::int32_t& count) {
  static_assert(emulator::one_of<S, half, float> && (std::is_same_v<D, S> || std::is_same_v<D, float>),
                "Axpy: half or float, or half into float");
  emulator::lanes<D>(
      "Axpy", {count, 0, nullptr},
      [&](D sum, S x) {
        return static_cast<D>(emulator::widen(sum) +
                              emulator::widen(static_cast<D>(emulator::widen(x) * emulator::widen(scalar))));
      },
      emulator::Operand<D>{dst, 1, 8}, emulator::Operand<D>{dst, 1, 8}, emulator::Operand<S>{src, 1, 8});
}
// dst += src0 * src1
template <class D, class S>
void MulAddDst(const LocalTensor<D>& dst, const LocalTensor<S>& src0, const LocalTensor<S>& src1,
               const std::int32_t& count) {
  static_assert(emulator::one_of<S, half, float> && (std::is_same_v<D, S> || std::is_same_v<D, float>),
                "MulAddDst: half or float, or half into float");
  emulator::lanes<D>(
      "MulAddDst", {count, 0, nullptr},
      [](D sum, S x, S y) {
        return static_cast<D>(emulator::widen(sum) +
                              emulator::widen(static_cast<D>(emulator::widen(x) * emulator::widen(y))));
      },
      emulator::Operand<D>{dst, 1, 8}, emulator::Operand<D>{dst, 1, 8}, emulator::Operand<S>{src0, 1, 8},
      emulator::Operand<S>{src1, 1, 8});
}

}  // namespace AscendC
