// The weights of a tensor in float32, whatever they and their masters are stored as: for the optimizers.
#pragma once

#include "cpu/split_master.h"

namespace boost_ext::cpu::BOOST_EXT_ISA {

// The weights of a tensor as rules see them: in float32, which may be their master. Called for each chunk, and not
// within the code of each rule.
class WideWeights {
 public:
  // As kernels get them: weights, or their float32 masters; and the half weights beside these, or the residuals.
  WideWeights(const View& weights, const View& narrow) : weights_(weights), narrow_(narrow) {}

  // Whether rules see and write the weights themselves.
  bool in_place() const { return !is_half(weights_) && narrow_.data == nullptr; }
  // n <= kChunk of them, or any number in place: where they lie, or in `scratch`.
  __attribute__((noinline)) float* floats(std::int64_t begin, std::int64_t n, float* scratch) const {
    if (!is_residual(narrow_)) return as_floats(weights_, begin, n, scratch);
    with_residual([&](const BFloat* weights, auto* residual) {
      sixteens(n, [&](auto io, std::int64_t i) BOOST_EXT_INLINE_LAMBDA {
        io.store(scratch + i, joined(io, weights + begin + i, residual + begin + i));
      });
    });
    return scratch;
  }
  // What a step has made of them, there.
  __attribute__((noinline)) void store(const float* w, std::int64_t begin, std::int64_t n) const {
    if (is_residual(narrow_)) {
      return with_residual([&](BFloat* weights, auto* residual) {
        sixteens(n, [&](auto io, std::int64_t i) BOOST_EXT_INLINE_LAMBDA {
          store_parted(io, io.load(w + i), weights + begin + i, residual + begin + i);
        });
      });
    }
    if (is_half(weights_)) typed(weights_, [&](auto* p) { convert(w, p + begin, n); });
    if (narrow_.data) typed(narrow_, [&](auto* p) { convert(w, p + begin, n); });
  }
  // A master of float32 takes the value of a weight that somebody has set; a residual is none.
  void catch_up(std::int64_t begin, std::int64_t n) const {
    if (!narrow_.data || is_residual(narrow_)) return;
    typed(narrow_, [&](auto* p) { follow(static_cast<float*>(weights_.data) + begin, p + begin, n); });
  }

 private:
  template <class Body> void with_residual(Body body) const {
    auto* weights = static_cast<BFloat*>(weights_.data);
    if (narrow_.dtype == DType::i16)
      body(weights, static_cast<std::int16_t*>(narrow_.data));
    else
      body(weights, static_cast<std::int8_t*>(narrow_.data));
  }
  const View& weights_;
  const View& narrow_;
};

}  // namespace boost_ext::cpu::BOOST_EXT_ISA
