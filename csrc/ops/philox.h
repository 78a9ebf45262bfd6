// Random words that follow from a key and a place alone, so that nothing has to be kept and nobody's order matters:
// Philox4x32 with 7 rounds, the fewest that pass BigCrush. Salmon, Moraes, Dror & Shaw, "Parallel random numbers: as
// easy as 1, 2, 3", SC 2011, section 3.2 and table 2.
//
// Each backend compiles this file into a namespace of its own; see ops/optimizer_rules.h. No standard library in here.
#pragma once

#include <cstdint>

#if !defined(BOOST_EXT_BACKEND) || !defined(BOOST_EXT_INLINE)
#error "a backend defines how its functions are declared before it includes this"
#endif

namespace BOOST_EXT_BACKEND {

constexpr int kPhiloxRounds = 7;
constexpr std::uint32_t kPhiloxFactor0 = 0xD2511F53u, kPhiloxFactor1 = 0xCD9E8D57u;
constexpr std::uint32_t kPhiloxStep0 = 0x9E3779B9u, kPhiloxStep1 = 0xBB67AE85u;  // of the key, from round to round

// What the rounds mix in, from a seed.
struct PhiloxRounds {
  std::uint32_t low[kPhiloxRounds], high[kPhiloxRounds];
  BOOST_EXT_INLINE explicit PhiloxRounds(std::uint64_t seed) {
    low[0] = static_cast<std::uint32_t>(seed);
    high[0] = static_cast<std::uint32_t>(seed >> 32);
    for (int round = 1; round < kPhiloxRounds; ++round) {
      low[round] = low[round - 1] + kPhiloxStep0;
      high[round] = high[round - 1] + kPhiloxStep1;
    }
  }
};

// Words 4 * block up to 4 * block + 3 of a draw.
BOOST_EXT_INLINE void philox(const PhiloxRounds& rounds, std::uint32_t draw, std::uint32_t stream, std::uint64_t block,
                             std::uint32_t (&word)[4]) {
  word[0] = static_cast<std::uint32_t>(block);
  word[1] = static_cast<std::uint32_t>(block >> 32);
  word[2] = draw;
  word[3] = stream;
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const std::uint64_t a = std::uint64_t{kPhiloxFactor0} * word[0], b = std::uint64_t{kPhiloxFactor1} * word[2];
    word[0] = static_cast<std::uint32_t>(b >> 32) ^ word[1] ^ rounds.low[round];
    word[1] = static_cast<std::uint32_t>(b);
    word[2] = static_cast<std::uint32_t>(a >> 32) ^ word[3] ^ rounds.high[round];
    word[3] = static_cast<std::uint32_t>(a);
  }
}

// Numbers of 16 bits of a block's words: low half first, as they lie in the memory of a little-endian machine.
constexpr int kPhiloxHalves = 8;
BOOST_EXT_INLINE std::uint32_t half_of(const std::uint32_t (&word)[4], int i) {
  const std::uint32_t left = i < 4 ? word[0] : word[2], right = i < 4 ? word[1] : word[3];
  return (i % 4 < 2 ? left : right) >> (i % 2 * 16) & 0xffffu;
}

}  // namespace BOOST_EXT_BACKEND
