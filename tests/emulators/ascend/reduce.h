// The rest of the vector unit: conversions, constants, comparisons, sums.
#pragma once

#include "vector.h"

namespace emulator {

template <class D, class S> D convert(S x, AscendC::RoundMode mode) {
  using AscendC::RoundMode;
  const bool nearest = mode != RoundMode::CAST_TRUNC;
  if constexpr (std::is_same_v<S, half> && std::is_same_v<D, float>) {
    expect(mode == RoundMode::CAST_NONE, "Cast: half to float is CAST_NONE");
    return x;
  } else if constexpr (std::is_same_v<S, bfloat16_t> && std::is_same_v<D, float>) {
    expect(mode == RoundMode::CAST_NONE, "Cast: bfloat16 to float is CAST_NONE");
    return bits_float(static_cast<std::uint32_t>(x.bits) << 16);
  } else if constexpr (std::is_same_v<S, float> && std::is_same_v<D, half>) {
    half h;
    h.bits = float_to_half(x, nearest);
    return h;
  } else if constexpr (std::is_same_v<S, float> && std::is_same_v<D, bfloat16_t>) {
    expect(mode != RoundMode::CAST_NONE, "Cast: float to bfloat16 needs a rounding mode");
    return {float_to_bfloat16(x, nearest)};
  } else if constexpr (std::is_same_v<S, float> && std::is_same_v<D, std::int32_t>) {
    expect(mode != RoundMode::CAST_NONE, "Cast: float to int32 needs a rounding mode");
    const float whole = nearest ? std::nearbyint(x) : std::trunc(x);
    if (std::isnan(whole)) return 0;
    return whole >= 0x1p31F ? INT32_MAX : whole < -0x1p31F ? INT32_MIN : static_cast<std::int32_t>(whole);
  } else {
    static_assert(std::is_same_v<S, std::int32_t> && std::is_same_v<D, float>, "Cast: this pair is not emulated");
    return static_cast<float>(x);
  }
}

// A tree over the lanes of one repeat: neighbours first. What lies beyond the lanes counts as 0.
template <class T>
T tree(const AscendC::LocalTensor<T>& src, const Shape& s, const Operand<T>& o, int repeat, std::int64_t first,
       std::int64_t lanes, std::int64_t width) {
  std::vector<T> x(static_cast<std::size_t>(width), static_cast<T>(0.0F));
  for (std::int64_t i = 0; i < lanes; ++i) {
    x[static_cast<std::size_t>(i)] = get<T>(src, lane_index(s, o, repeat, first + i));
  }
  for (; width > 1; width /= 2) {
    for (std::int64_t i = 0; i < width / 2; ++i) {
      const auto at = static_cast<std::size_t>(i);
      x[at] = static_cast<T>(widen(x[2 * at]) + widen(x[2 * at + 1]));
    }
  }
  return x[0];
}

}  // namespace emulator

namespace AscendC {

template <class D, class S>
void Cast(const LocalTensor<D>& dst, const LocalTensor<S>& src, const RoundMode& mode, const std::uint32_t count) {
  emulator::lanes<D>(
      "Cast", {count, 0, nullptr}, [&](S x) { return emulator::convert<D>(x, mode); }, emulator::Operand<D>{dst, 1, 8},
      emulator::Operand<S>{src, 1, 8});
}

template <class T> void Duplicate(const LocalTensor<T>& dst, const T& scalar, const std::int32_t& count) {
  static_assert(sizeof(T) == 2 || sizeof(T) == 4, "Duplicate: types of two or four bytes");
  emulator::lanes<T>("Duplicate", {count, 0, nullptr}, [&]() { return scalar; }, emulator::Operand<T>{dst, 1, 8});
}

// One bit an element, the lowest first.
template <class T, class F>
void compare(const char* op, const LocalTensor<std::uint8_t>& dst, const LocalTensor<T>& src0,
             const LocalTensor<T>* src1, F value, CMPMODE mode, std::uint32_t count) {
  static_assert(BOOST_EXT_FLOATS, "Compare: half or float");
  emulator::expect(count > 0 && count * sizeof(T) % 256 == 0, op, ": a multiple of 256 bytes, got ", count * sizeof(T));
  dst.aligned(op);
  src0.aligned(op);
  emulator::Instruction it(op, PIPE_V);
  it.reads(src0.at(op, 0, count), static_cast<std::int64_t>(count * sizeof(T)));
  if (src1) {
    src1->aligned(op);
    it.reads(src1->at(op, 0, count), static_cast<std::int64_t>(count * sizeof(T)));
  }
  it.writes(dst.at(op, 0, count / 8), count / 8);
  it.go();
  for (std::uint32_t i = 0; i < count; i += 8) {
    unsigned bits = 0;
    for (unsigned j = 0; j < 8; ++j) {
      const float a = emulator::get<T>(src0, i + j), b = value(i + j);
      const bool is = mode == CMPMODE::LT   ? a < b
                      : mode == CMPMODE::GT ? a > b
                      : mode == CMPMODE::EQ ? a == b
                      : mode == CMPMODE::LE ? a <= b
                      : mode == CMPMODE::GE ? a >= b
                                            : a != b;
      bits |= static_cast<unsigned>(is) << j;
    }
    emulator::put<std::uint8_t>(dst, i / 8, static_cast<std::uint8_t>(bits));
  }
}
template <class T>
void Compare(const LocalTensor<std::uint8_t>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1, CMPMODE mode,
             std::uint32_t count) {
  compare<T>(
      "Compare", dst, src0, &src1, [&](std::int64_t i) -> float { return emulator::get<T>(src1, i); }, mode, count);
}
template <class T>
void CompareScalar(const LocalTensor<std::uint8_t>& dst, const LocalTensor<T>& src0, const T scalar, CMPMODE mode,
                   std::uint32_t count) {
  compare<T>("CompareScalar", dst, src0, nullptr, [&](std::int64_t) -> float { return scalar; }, mode, count);
}

template <class T, class F>
void select(const LocalTensor<T>& dst, const LocalTensor<std::uint8_t>& mask, const LocalTensor<T>& src0,
            const LocalTensor<T>* src1, F other, std::uint32_t count) {
  static_assert(BOOST_EXT_FLOATS, "Select: half or float");
  const auto bytes = static_cast<std::int64_t>(count * sizeof(T));
  emulator::expect(count > 0, "Select: a count from 1, got 0");
  emulator::Instruction it("Select", PIPE_V);
  for (const LocalTensor<T>* t : {&dst, &src0, src1}) {
    if (!t) continue;
    t->aligned("Select");
    if (t != &dst) it.reads(t->at("Select", 0, count), bytes);
  }
  mask.aligned("Select");
  it.reads(mask.at("Select", 0, (count + 7) / 8), (count + 7) / 8);
  it.writes(dst.at("Select", 0, count), bytes);
  it.go();
  for (std::int64_t i = 0; i < count; ++i) {
    const bool first = (emulator::get<std::uint8_t>(mask, i / 8) >> (i % 8) & 1) != 0;
    emulator::put<T>(dst, i, first ? emulator::get<T>(src0, i) : other(i));
  }
}
template <class T>
void Select(const LocalTensor<T>& dst, const LocalTensor<std::uint8_t>& mask, const LocalTensor<T>& src0,
            const LocalTensor<T>& src1, SELMODE mode, std::uint32_t count) {
  emulator::expect(mode == SELMODE::VSEL_TENSOR_TENSOR_MODE, "Select: two tensors are VSEL_TENSOR_TENSOR_MODE");
  select<T>(dst, mask, src0, &src1, [&](std::int64_t i) { return emulator::get<T>(src1, i); }, count);
}
template <class T>
void Select(const LocalTensor<T>& dst, const LocalTensor<std::uint8_t>& mask, const LocalTensor<T>& src0, T scalar,
            SELMODE mode, std::uint32_t count) {
  emulator::expect(mode == SELMODE::VSEL_TENSOR_SCALAR_MODE, "Select: a scalar is VSEL_TENSOR_SCALAR_MODE");
  select<T>(dst, mask, src0, nullptr, [&](std::int64_t) { return scalar; }, count);
}

// A tree in each repeat, the repeats one after the other. `shared` has room for a value a repeat.
template <class T>
void ReduceSum(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<T>& shared,
               const std::int32_t count) {
  static_assert(BOOST_EXT_FLOATS, "ReduceSum: half or float");
  constexpr std::int64_t width = 256 / static_cast<std::int64_t>(sizeof(T));
  emulator::expect(count > 0, "ReduceSum: a count from 1, got ", count);
  for (const LocalTensor<T>* t : {&dst, &src, &shared}) t->aligned("ReduceSum");
  const std::int64_t repeats = (count + width - 1) / width;
  const std::int64_t room = (repeats + emulator::kPerBlock<T> - 1) / emulator::kPerBlock<T> * emulator::kPerBlock<T>;
  emulator::Instruction it("ReduceSum", PIPE_V);
  it.reads(src.at("ReduceSum", 0, count), count * static_cast<std::int64_t>(sizeof(T)));
  it.writes(shared.at("ReduceSum", 0, room), room * static_cast<std::int64_t>(sizeof(T)));
  it.writes(dst.at("ReduceSum", 0, 1), sizeof(T));
  it.go();
  T total = static_cast<T>(0.0F);
  for (std::int64_t i = 0; i < count; i += width) {
    const T sum = emulator::tree<T>(src, {count, 0, nullptr}, {src, 1, 8}, 0, i, std::min(width, count - i), width);
    total = static_cast<T>(emulator::widen(total) + emulator::widen(sum));
  }
  emulator::core().poison(shared.offset(), room * static_cast<std::int64_t>(sizeof(T)));
  std::memset(emulator::core().written.data() + dst.offset(), 1, sizeof(T));
  emulator::put<T>(dst, 0, total);
}

// One value a repeat; the stride of dst is in elements.
template <class T>
void WholeReduceSum(const LocalTensor<T>& dst, const LocalTensor<T>& src, const std::int32_t mask,
                    const std::int32_t repeats, const std::int32_t dst_repeat, const std::int32_t src_block,
                    const std::int32_t src_repeat) {
  static_assert(BOOST_EXT_FLOATS, "WholeReduceSum: half or float");
  const emulator::Shape shape{mask, repeats, nullptr};
  const emulator::Operand<T> from{src, src_block, src_repeat};
  emulator::expect(repeats >= 1, "WholeReduceSum: 1 to 255 repeats, got ", repeats);
  emulator::check_shape("WholeReduceSum", shape, sizeof(T));
  dst.aligned("WholeReduceSum", sizeof(T));
  emulator::Instruction it("WholeReduceSum", PIPE_V);
  emulator::touch("WholeReduceSum", shape, from, [&](std::int64_t at, std::int64_t bytes) { it.reads(at, bytes); });
  for (int r = 0; r < repeats; ++r) it.writes(dst.at("WholeReduceSum", r * dst_repeat, 1), sizeof(T));
  it.go();
  std::vector<T> sums;
  for (int r = 0; r < repeats; ++r) {
    sums.push_back(emulator::tree<T>(src, shape, from, r, 0, mask, 256 / static_cast<std::int64_t>(sizeof(T))));
  }
  for (int r = 0; r < repeats; ++r) emulator::put<T>(dst, r * dst_repeat, sums[static_cast<std::size_t>(r)]);
}

// One value for each 32 bytes, eight a repeat; the stride of dst is in eights of values.
template <class T>
void BlockReduceSum(const LocalTensor<T>& dst, const LocalTensor<T>& src, const std::int32_t repeats,
                    const std::int32_t mask, const std::int32_t dst_repeat, const std::int32_t src_block,
                    const std::int32_t src_repeat) {
  static_assert(BOOST_EXT_FLOATS, "BlockReduceSum: half or float");
  const emulator::Shape shape{mask, repeats, nullptr};
  const emulator::Operand<T> from{src, src_block, src_repeat};
  emulator::expect(repeats >= 1, "BlockReduceSum: 1 to 255 repeats, got ", repeats);
  emulator::check_shape("BlockReduceSum", shape, sizeof(T));
  dst.aligned("BlockReduceSum", 8 * sizeof(T));
  emulator::Instruction it("BlockReduceSum", PIPE_V);
  emulator::touch("BlockReduceSum", shape, from, [&](std::int64_t at, std::int64_t bytes) { it.reads(at, bytes); });
  for (int r = 0; r < repeats; ++r) it.writes(dst.at("BlockReduceSum", 8 * r * dst_repeat, 8), 8 * sizeof(T));
  it.go();
  constexpr std::int64_t block = emulator::kPerBlock<T>;
  std::vector<T> sums;
  for (int r = 0; r < repeats; ++r) {
    for (std::int64_t b = 0; b < 8; ++b) {
      const std::int64_t count = std::clamp<std::int64_t>(mask - b * block, 0, block);
      sums.push_back(emulator::tree<T>(src, shape, from, r, b * block, count, block));
    }
  }
  for (std::size_t i = 0; i < sums.size(); ++i) {
    emulator::put<T>(dst, static_cast<std::int64_t>(8 * (i / 8) * static_cast<std::size_t>(dst_repeat) + i % 8),
                     sums[i]);
  }
}

}  // namespace AscendC
