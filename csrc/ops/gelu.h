// gelu and its gradient: the Gaussian error linear unit, element by element.
//
//   y  <- x Phi(x)                          Phi: the normal distribution function
//   dx <- dy (Phi(x) + x phi(x))            phi: its density
//
// Hendrycks and Gimpel, "Gaussian error linear units", arXiv 1606.08415, section 2. With `tanh` Phi(x) is
// (1 + tanh(u)) / 2, u = sqrt(2 / pi) (x + 0.044715 x^3), the approximation of that section, and dx is the gradient of
// it. Phi of large negative x has a small relative error, not only a small absolute one: it is not 1 less something. x,
// dy   float32, float16 or bfloat16, of one size and dtype; arithmetic in float32 y, dx   like x, written
#pragma once

#include "ops/runtime.h"
#include "ops/schema.h"

namespace boost_ext {

inline constexpr Arg kGeluArgs[] = {array("x", kFloats), flag("tanh"), array("y", kFloats).dtypes_of("x").written()};
inline constexpr Schema kGelu{"gelu", kGeluArgs, Devices::cpu};

inline constexpr Arg kGeluGradientArgs[] = {array("dy", kFloats), array("x", kFloats).dtypes_of("dy"), flag("tanh"),
                                            array("dx", kFloats).dtypes_of("dy").written()};
inline constexpr Schema kGeluGradient{"gelu_gradient", kGeluGradientArgs, Devices::cpu};

void gelu(const Context& context, const View& x, bool tanh, const View& y);
void gelu_gradient(const Context& context, const View& dy, const View& x, bool tanh, const View& dx);

BOOST_EXT_CPU_KERNEL(void, gelu, const Context&, const View& x, bool tanh, const View& y)
BOOST_EXT_CPU_KERNEL(void, gelu_gradient, const Context&, const View& dy, const View& x, bool tanh, const View& dx)

}  // namespace boost_ext
