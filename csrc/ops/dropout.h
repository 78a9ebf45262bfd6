// dropout: a random share of the elements becomes 0, and the others grow so that the mean stays.
//
//   out[i] <- 0 where half(i / shared) < p * 2^16, otherwise x[i] / (1 - p)
//
// Srivastava et al., "Dropout: a simple way to prevent neural networks from overfitting", JMLR 15, 2014; with `shared`
// of the size of a channel's plane Tompson et al., "Efficient object localization using convolutional networks", CVPR
// 2015, section 3.2. A half is 16 bits of the words of Philox (ops/philox.h), numbered by the key: so a mask is not
// kept, it is drawn again, and the backward pass is the same call on the gradient.
// x       float32, float16 or bfloat16; what is dropped is 0, even if it was inf or nan
// p       0 <= p <= 1, rounded to a multiple of 2^-16; with 1 all is 0
// seed, draw, stream  the key. `draw` may be an int32 on the device of the arrays (a CUDA graph), unchecked there
// shared  how many elements in a row share a half: >= 1, and x is a multiple of it
// out     like x in dtype and size, written; may be x itself
#pragma once

#include "ops/runtime.h"
#include "ops/schema.h"

namespace boost_ext {

struct DropoutKey {
  std::uint64_t seed = 0;
  std::uint32_t draw = 0;    // which pass
  std::uint32_t stream = 0;  // whose: a rank
};

// What is kept of p: halves below `dropped` drop.
struct DropoutShare {
  std::uint32_t dropped;
  float scale;
};

inline constexpr Arg kDropoutArgs[] = {array("x", kFloats).twin(),
                                       real("p", Range::any),
                                       integer("seed"),
                                       number("draw", Range::any, kI32),
                                       integer("stream"),
                                       integer("shared"),
                                       array("out", kFloats).dtypes_of("x").made_alike().twin()};
inline constexpr Schema kDropout{"dropout", kDropoutArgs};

void dropout(const Context& context, const View& x, double p, std::uint64_t seed, const Number& draw,
             std::uint32_t stream, std::int64_t shared, const View& out);

// The key of the next pass of a layer, whose state is the seed, low half first, the passes made, and 0.
// key <- state, with `stream` at the end; then one more pass is made.
inline constexpr Arg kDropoutKeyArgs[] = {array("state", kI32, 4).written(), integer("stream"),
                                          array("key", kI32, 4).written()};
inline constexpr Schema kDropoutKey{"dropout_key", kDropoutKeyArgs, Devices::cpu};
void dropout_key(const Context& context, const View& state, std::int64_t stream, const View& key);

// With such a key; `rows`: what shares the last axis shares a half.
inline constexpr Arg kDropoutOfKeyArgs[] = {array("x", kFloats), array("key", kI32, 4), real("p"), flag("rows"),
                                            array("out", kFloats).written()};
inline constexpr Schema kDropoutOfKey{"dropout", kDropoutOfKeyArgs, Devices::cpu};
void dropout_of_key(const Context& context, const View& x, const View& key, double p, bool rows, const View& out);

BOOST_EXT_CPU_KERNEL(void, dropout, const Context&, const View& x, const DropoutShare& share, const DropoutKey& key,
                     std::int64_t shared, const View& out)

BOOST_EXT_CUDA_KERNEL(dropout, const Context&, const View& x, const DropoutShare& share, const DropoutKey& key,
                      std::int64_t shared, const View& out, const std::int32_t* draw)

}  // namespace boost_ext
