// adasum_part: the adaptive sum of two vectors that are spread over ranks; each rank works on its part of both.
//
// A vector is a list of tensors, one behind the other, and zeros behind them, cut into parts of h elements each.
//   dots     of a part: what it adds to <a,b>, |a|^2 and |b|^2 of each tensor; 0 for a tensor that it holds nothing of
//   combine  of a part: the adaptive sum (ops/adasum.h), with the dots of all parts of this pair added up in the order
//            in which they are given, so that every rank has the same coefficients to the last bit
//   pack, pack_difference, apply: into and out of such a vector, without arithmetic but the subtraction
//   keep     notes the weights before a step
//
// halves  of keep and apply: nothing, or a list like the weights: float16 or bfloat16 weights whose float32 masters
//         (ops/optimizer_step.h) are the weights of this op, and empty views for others. apply rounds into them. Before
//         it notes a master, keep lets it follow a half that is no longer what the master rounds to, as a step would.
// sizes   elements of each tensor
// index   which part; it holds the elements from index * h
// a, b    (h,) float32, float16 or bfloat16
// dots    float32 (12 T,), and for combine as many times that: a float64 travels as the four 16-bit numbers that its
//         bits are, lowest first. All are integers that float32 holds, so that a sum with zeros leaves them as they
//         are: the only exchange that MindSpore has on the CPU for some of the ranks is a sum.
// Source: Maleki et al., "Scaling distributed training with adaptive summation", MLSys 2021, sections 3.2 and 4.1.
#pragma once

#include "ops/runtime.h"
#include "ops/schema.h"

namespace boost_ext {

using Sizes = std::vector<std::int64_t>;

inline constexpr Arg kAdasumPartDotsArgs[] = {array("a", kFloats), array("b", 0).like("a").dtypes_of("a"),
                                              integers("sizes"), integer("index"), array("dots", kF32).written()};
inline constexpr Schema kAdasumPartDots{"adasum_part_dots", kAdasumPartDotsArgs, Devices::cpu};

inline constexpr Arg kAdasumPartCombineArgs[] = {
    array("a", kFloats).twin(), array("b", 0).like("a").dtypes_of("a").twin(),
    integers("sizes"),          integer("index"),
    array("dots", kF32),        array("out", 0).like("a").dtypes_of("a").written().twin()};
inline constexpr Schema kAdasumPartCombine{"adasum_part_combine", kAdasumPartCombineArgs, Devices::cpu};

inline constexpr Arg kAdasumPartPackArgs[] = {arrays("tensors", kFloats), array("vector", 0).written()};
inline constexpr Schema kAdasumPartPack{"adasum_part_pack", kAdasumPartPackArgs, Devices::cpu};

inline constexpr Arg kAdasumPartPackDifferenceArgs[] = {arrays("a", kFloats), arrays("b", 0).like("a").dtypes_of("a"),
                                                        array("vector", 0).written()};
inline constexpr Schema kAdasumPartPackDifference{"adasum_part_pack_difference", kAdasumPartPackDifferenceArgs,
                                                  Devices::cpu};

void adasum_part_dots(const Context& context, const View& a, const View& b, const Sizes& sizes, std::int64_t index,
                      const View& dots);
void adasum_part_combine(const Context& context, const View& a, const View& b, const Sizes& sizes, std::int64_t index,
                         const View& dots, const View& out);

// out <- weights, tensors of the same sizes and dtypes
void adasum_part_keep(const Context& context, const Views& weights, const Views& halves, const Views& out);

// vector <- tensors: the whole of it, zeros included
void adasum_part_pack(const Views& tensors, const View& vector);

// vector <- a - b
void adasum_part_pack_difference(const Context& context, const Views& a, const Views& b, const View& vector);

// weights <- old - vector, whose parts lie one behind the other as parts[0], parts[1], ...; -1: not a part, not read.
void adasum_part_apply(const Context& context, const View& vector, const std::vector<std::int64_t>& parts,
                       const Views& old, const Views& weights, const Views& halves);

BOOST_EXT_CPU_KERNEL(void, adasum_part_keep, const Context&, Tensors weights, Tensors halves, Tensors out)
// weights <- old - sum; halves without data where there is none
BOOST_EXT_CPU_KERNEL(void, adasum_part_apply, const Context&, Tensors sum, Tensors old, Tensors weights, Tensors halves)

}  // namespace boost_ext
