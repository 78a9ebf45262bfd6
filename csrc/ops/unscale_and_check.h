// unscale_and_check: remove the loss scale from a list of gradients and see whether they are finite, in one pass.
//
//   g <- g * inv_scale   for every element of every tensor;   found = some element is inf or nan
//
// grads      float32, float16 or bfloat16, any shapes; a float32 product, rounded to the tensor's dtype
// inv_scale  finite and > 0. With inv_scale = 1 nothing is written, and read-only tensors are accepted
// Returns per tensor: how many inf, how many nan, the first index (row-major) of either or -1, and the largest finite
// magnitude, all of the values after the multiplication (so an overflow of the product itself is found, too).
// With inv_scale below the least normal float32 the product is rounded twice.
// A tensor listed more than once is one tensor: multiplied once, reported each time. Partial overlaps are refused.
// The pass keeps one integer maximum of the bits of |g|: inf and nan are the largest bits there are, so finding them
// and measuring the largest magnitude is the same work; counting happens only in blocks that have some.
#pragma once

#include "ops/runtime.h"
#include "ops/schema.h"

namespace boost_ext {

constexpr double kLeastNormal = 1.1754943508222875e-38;  // of float32
constexpr double kLeastSubnormal = 1.401298464324817e-45;
constexpr double kTwo64 = 18446744073709551616.0;

struct Finiteness {
  std::int64_t inf = 0;
  std::int64_t nan = 0;
  std::int64_t first = -1;
  float max_abs = 0;

  bool found() const { return first >= 0; }
};

inline constexpr Arg kUnscaleAndCheckArgs[] = {arrays("grads", kFloats).any_order().written("inv_scale").repeatable(),
                                               number("inv_scale").inverse("scale"),
                                               array("report", kF64).made(4).optional(), answer("out", kF32)};
inline constexpr Schema kUnscaleAndCheck{"unscale_and_check", kUnscaleAndCheckArgs, Devices::all};

inline constexpr Arg kCheckGradientsArgs[] = {arrays("grads", kFloats), real("inv_scale").inverse("scale"),
                                              array("report", kF64).written(), answer("out", kF32)};
inline constexpr Schema kCheckGradients{"unscale_and_check", kCheckGradientsArgs, Devices::cpu};

// One over a loss scale, and what else gradients are divided by, in float64: MindSpore flushes subnormal float32 to
// zero, and those are the reciprocals of scales beyond 2^126. That of a power of two is exact.
double inverse_scale(double scale, double other = 1);

// found: one float32, 1 if some element is inf or nan, else 0.
// report: nothing, or (tensors, 4) float64: for each tensor the number of inf, the number of nan, the first index of
//         either (-1 if there is none) and the largest finite magnitude, after the multiplication.
void unscale_and_check(const Context& context, const Views& grads, const Number& inv_scale, const View& report,
                       const View& found);
// Reads only: found is said of the gradients as they are, and the largest magnitudes are multiplied with inv_scale. For
// a reader of the gradients that takes the scale out itself.
void check_gradients(const Context& context, const Views& grads, double inv_scale, const View& report,
                     const View& found);
// For ops that have checked their arguments: on the CPU, a row for each gradient.
std::vector<Finiteness> unscale_and_find(const Context& context, const Views& grads, double inv_scale);
// The same, as check_gradients does, and the sum of the squares of each gradient, in the same read.
std::vector<double> check_and_square(const Context& context, const Views& grads, double inv_scale, const View& report,
                                     const View& found);
void require_report(const char* op, const View& report, std::size_t tensors);
void write_row(double* row, const Finiteness& f);

BOOST_EXT_CPU_KERNEL(void, unscale_and_check, const Context&, Tensors grads, float inv_scale, Finiteness* per_tensor)
// Reads only, and gives the sum of the squares of each tensor too, as global_norm does.
BOOST_EXT_CPU_KERNEL(void, check_and_square, const Context&, Tensors grads, Finiteness* per_tensor, double* squares)

// report, if there is one: the four numbers of tensor i in row i.
BOOST_EXT_CUDA_KERNEL(unscale_and_check, const Context&, Tensors grads, const Number& inv_scale, double* report,
                      float* found)
// Each factor in its own pass; found is one float32.
BOOST_EXT_ASCEND_KERNEL(unscale_and_check, const Context&, Tensors grads, const std::vector<float>& factors,
                        const View& found)

}  // namespace boost_ext
