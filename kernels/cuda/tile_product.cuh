// Products of float32 matrices in tiles of 64 by 64: what a block of threads does once the tiles are in its shared
// memory. A thread has 4 by 4 elements of the product.
#pragma once

#include "common.cuh"

namespace boost_ext::cuda {

constexpr int kTile = 64;
constexpr int kDepth = 16;  // products that shared memory holds at a time
constexpr int kEach = 4;
constexpr int kLoads = kTile * kDepth / kThreads;  // elements of a tile that a thread brings
constexpr int kSlab = 128;                         // products that are summed before the sum goes to other ones
static_assert(kThreads * kEach * kEach == kTile * kTile && kSlab % kDepth == 0);

struct alignas(16) Tile {
  float at[kDepth][kTile + 4];  // rows of 16 bytes, shifted by banks
};

// sums += the products of kDepth columns of a (which lie in its rows) with as many rows of b.
BOOST_EXT_DEVICE void multiply(const Tile& a, const Tile& b, float (&sums)[kEach][kEach]) {
  const int row = static_cast<int>(threadIdx.x) / (kTile / kEach) * kEach;
  const int column = static_cast<int>(threadIdx.x) % (kTile / kEach) * kEach;
#pragma unroll 4
  for (int k = 0; k < kDepth; ++k) {
    const float4 left = *reinterpret_cast<const float4*>(&a.at[k][row]);
    const float4 right = *reinterpret_cast<const float4*>(&b.at[k][column]);
    const float l[kEach] = {left.x, left.y, left.z, left.w}, r[kEach] = {right.x, right.y, right.z, right.w};
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
#pragma unroll
      for (int j = 0; j < kEach; ++j) sums[i][j] = fmaf(l[i], r[j], sums[i][j]);
    }
  }
}

// The elements of this thread: body(i, j, row, column).
template <class Body> BOOST_EXT_DEVICE void each_of_tile(Body body) {
  const int row = static_cast<int>(threadIdx.x) / (kTile / kEach) * kEach;
  const int column = static_cast<int>(threadIdx.x) % (kTile / kEach) * kEach;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
#pragma unroll
    for (int j = 0; j < kEach; ++j) body(i, j, row + i, column + j);
  }
}

// total <- total + sums, sums <- 0.
template <class T> BOOST_EXT_DEVICE void carry(T (&total)[kEach][kEach], float (&sums)[kEach][kEach]) {
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      total[i][j] += static_cast<T>(sums[i][j]);
      sums[i][j] = 0;
    }
  }
}

}  // namespace boost_ext::cuda
