// What the lanes of a warp take away from what they bring. Pure functions; block.cpp knows when all have arrived.
#pragma once

#include <cstdint>

#include "block.h"

namespace boost_ext::cuda::emulator {

constexpr unsigned kWarp = 32;

inline bool is_shuffle(WarpOp op) { return op >= WarpOp::index && op <= WarpOp::up; }

// The lane a shuffle takes from; any bits of `call.argument` above the fifth are ignored, as by shfl.sync.
inline unsigned source_lane(const WarpCall& call, unsigned lane) {
  const unsigned first = lane & ~(call.width - 1), last = first + call.width - 1, by = call.argument & (kWarp - 1);
  unsigned from = lane;
  if (call.op == WarpOp::index) from = first | (by & (call.width - 1));
  if (call.op == WarpOp::exclusive_or) from = lane ^ by;
  if (call.op == WarpOp::down) from = lane + by;
  if (call.op == WarpOp::up && lane >= by + first) from = lane - by;
  // Only the end of a segment of `width` lanes is kept: exclusive or may look into the segments before.
  return call.op != WarpOp::index && from > last ? lane : from;
}

// Votes and reductions, the same for all lanes of the mask.
class Together {
 public:
  void add(std::uint64_t v, unsigned lane) {
    ballot_ |= std::uint64_t{v != 0} << lane;
    sum_ += v;
    least_ = v < least_ ? v : least_;
    most_ = v > most_ ? v : most_;
    common_ &= v;
    some_ |= v;
  }
  std::uint64_t result(WarpOp op, unsigned mask) const {
    switch (op) {
      case WarpOp::any:
        return ballot_ != 0 ? 1 : 0;
      case WarpOp::all:
        return ballot_ == mask ? 1 : 0;
      case WarpOp::add:
        return sum_;
      case WarpOp::min:
        return least_;
      case WarpOp::max:
        return most_;
      case WarpOp::bit_and:
        return common_;
      case WarpOp::bit_or:
        return some_;
      default:
        return ballot_;
    }
  }

 private:
  std::uint64_t ballot_ = 0, sum_ = 0, least_ = ~std::uint64_t{0}, most_ = 0, common_ = ~std::uint64_t{0}, some_ = 0;
};

}  // namespace boost_ext::cuda::emulator
