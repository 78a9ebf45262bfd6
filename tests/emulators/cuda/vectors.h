// Vector types as large and as aligned as CUDA's, and where a thread is: threadIdx, blockIdx, blockDim, gridDim.
#pragma once

#include <type_traits>

#define BOOST_EXT_EMULATED_VECTORS(T, name, align2, align4)          \
  struct alignas(align2) name##2 { T x, y; };                        \
  struct name##3 { T x, y, z; };                                     \
  struct alignas(align4) name##4 { T x, y, z, w; };                  \
  inline name##2 make_##name##2(T x, T y) { return {x, y}; }         \
  inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; } \
  inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }

BOOST_EXT_EMULATED_VECTORS(signed char, char, 2, 4)
BOOST_EXT_EMULATED_VECTORS(unsigned char, uchar, 2, 4)
BOOST_EXT_EMULATED_VECTORS(short, short, 4, 8)
BOOST_EXT_EMULATED_VECTORS(unsigned short, ushort, 4, 8)
BOOST_EXT_EMULATED_VECTORS(int, int, 8, 16)
BOOST_EXT_EMULATED_VECTORS(unsigned, uint, 8, 16)
BOOST_EXT_EMULATED_VECTORS(long long, longlong, 16, 16)
BOOST_EXT_EMULATED_VECTORS(unsigned long long, ulonglong, 16, 16)
BOOST_EXT_EMULATED_VECTORS(float, float, 8, 16)
BOOST_EXT_EMULATED_VECTORS(double, double, 16, 16)
#undef BOOST_EXT_EMULATED_VECTORS

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}  // NOLINT: implicit in CUDA
  constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}                                   // NOLINT
};

constexpr int warpSize = 32;
inline uint3 threadIdx{};  // of the one kernel that runs
inline uint3 blockIdx{};
inline dim3 blockDim;
inline dim3 gridDim;
