// The calls that boost_ext's thor makes, from MindSpore's graphs and by pointer alike: one flat list of arrays, numbers
// included, so that nothing is read on the Python side.
#pragma once

#include "ops/tensor.h"

namespace boost_ext {

// The covariances of one layer, in the steps whose number is a multiple of the frequency; otherwise nothing happens.
//   step      int32 (1,): steps made so far
//   layer     int32 (15,): kind (0 Dense, 1 convolution, 2 embedding), frequency, output channels; of a convolution
//             input channels, kernel, stride, dilation (two each), whether it pads as "same", padding above, below,
//             left, right
//   batch     float64 (1,): gradients times it are those of single samples
//   x         the layer's input: (rows, d); (n * c * h, w) of a convolution; int32 (rows,) of an embedding
//   dout      the gradient of its output: (rows, o), or (n, o, oh, ow)
//   A, G      float64, written, see ops/covariance.h
// With T output positions of a convolution (T = 1 for the others): A = sqrt(T) * mean of a a^T and G = sqrt(T) *
// batch^2
// * mean of dout dout^T over samples and positions; A of an embedding: how often each row was used, by batch.
void packed_covariance(const Views& arrays);

// The inverses of all layers, in the same steps, unless skipped; false if some matrix could not be inverted.
//   step, skip bool (1,), layout int32 (2,): frequency, number of layers
//   own_scale float64 (1,), scale float32 (1,): dout was this many times too large
//   damping   float32 (k,): one number, or one for each step, of which the last is good for all that follow
//   A, G      float64, one a layer; A^-1, G^-1 float32, written: (A + sqrt(damping) I)^-1
bool packed_inverse(const Views& arrays);

// New gradients: out = G^-1 g A^-1 / scale of the layers, g / scale of the others.
//   scale     float32 (1,)
//   A^-1, G^-1 of the layers
//   layout    int32 (n,): for each gradient 0 if it belongs to no layer, 1 if it is that of the next Dense or
//             convolution, 2 that of the next embedding
//   n gradients; n of float32, written
void packed_precondition(const Views& arrays);

}  // namespace boost_ext
