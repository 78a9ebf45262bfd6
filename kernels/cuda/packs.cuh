// Elements of any storage type as float32, and packs of them: what a thread reads and writes at a time. The lanes of a
// warp that have packs side by side move them together, so that each of their accesses touches whole sectors of memory,
// whatever the packs are aligned to; who has which element does not change.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "common.cuh"

namespace boost_ext::cuda {

constexpr int kPack = 8;                    // elements: 16 bytes of halves, twice 16 of float32
constexpr unsigned kInfBits = 0x7f800000u;  // of float32; a nan's, without its sign, are more

BOOST_EXT_DEVICE float as_float(float x) { return x; }
BOOST_EXT_DEVICE float as_float(__half x) { return __half2float(x); }
BOOST_EXT_DEVICE float as_float(__nv_bfloat16 x) { return __bfloat162float(x); }

// A type that the compiler knows.
template <DType kType> struct TypeOf {
  static constexpr DType value = kType;
  BOOST_EXT_DEVICE operator DType() const { return kType; }  // NOLINT: a constant
};

// Elements by index, whatever they are stored as.
BOOST_EXT_DEVICE float load(const void* p, DType t, std::int64_t i) {
  if (t == DType::f16) return __half2float(static_cast<const __half*>(p)[i]);
  if (t == DType::bf16) return __bfloat162float(static_cast<const __nv_bfloat16*>(p)[i]);
  return static_cast<const float*>(p)[i];
}
BOOST_EXT_DEVICE void store(void* p, DType t, std::int64_t i, float x) {
  if (t == DType::f16)
    static_cast<__half*>(p)[i] = __float2half_rn(x);
  else if (t == DType::bf16)
    static_cast<__nv_bfloat16*>(p)[i] = __float2bfloat16_rn(x);
  else
    static_cast<float*>(p)[i] = x;
}
// What a store and a load would make of it.
BOOST_EXT_DEVICE float rounded(DType t, float x) {
  if (t == DType::f16) return __half2float(__float2half_rn(x));
  if (t == DType::bf16) return __bfloat162float(__float2bfloat16_rn(x));
  return x;
}

struct Pack {
  float v[kPack];
};

// Sums of the products of packs, as on the CPU. float32 is multiplied and added in float64. The products of two float16
// or of two bfloat16 are exact in float32, and those of a pack are added there, with three roundings: many cards have
// one unit for float64 beside 64 for float32.
BOOST_EXT_DEVICE float product_in_floats(const Pack& a, const Pack& b) {
  float s[kPack / 2];
#pragma unroll
  for (int j = 0; j < kPack / 2; ++j) s[j] = __fmaf_rn(a.v[j], b.v[j], a.v[j + kPack / 2] * b.v[j + kPack / 2]);
  return (s[0] + s[1]) + (s[2] + s[3]);
}
BOOST_EXT_DEVICE double add_product(double sum, const Pack& a, const Pack& b) {
#pragma unroll
  for (int j = 0; j < kPack; ++j) sum = add_product(sum, a.v[j], b.v[j]);
  return sum;
}
// Whether the squares of bfloat16 have neither overflown in float32, nor vanished beside what is there.
BOOST_EXT_DEVICE bool exact_in_floats(double squares) { return squares >= 0x1p-80 && squares <= 0x1p127; }

// Elements of a pack that a thread has. `together`: all lanes of its warp have whole ones, side by side; `aligned`: to
// 16 bytes, as the code is written, and need not be looked at.
struct Count {
  int n;
  bool together, aligned;
  BOOST_EXT_DEVICE Count(int count, bool side_by_side = false, bool known_to_be_aligned = false)
      : n(count), together(side_by_side), aligned(known_to_be_aligned) {}  // NOLINT: a number
  BOOST_EXT_DEVICE operator int() const { return n; }                      // NOLINT
};
// Of packs side by side, of which the first lane of the warp sees so many elements before their end.
BOOST_EXT_DEVICE Count count_of(std::int64_t rest_of_warp) {
  const std::int64_t rest = rest_of_warp - static_cast<int>(threadIdx.x) % kWarp * kPack;
  return {rest < 0 ? 0 : rest < kPack ? static_cast<int>(rest) : kPack, rest_of_warp >= kWarp * kPack};
}

// A whole pack as it is stored, in words of 4 bytes: 8 of float32, 4 of halves, 2 of codes.
struct Raw {
  unsigned word[kPack];
};
BOOST_EXT_DEVICE int words_of(DType t) { return t == DType::f32 ? 8 : 4; }
BOOST_EXT_DEVICE char* pack_at(const void* p, DType t, std::int64_t i) {
  return static_cast<char*>(const_cast<void*>(p)) + (t == DType::f32 ? 4 * i : 2 * i);
}

// One access of 16 or of 8 bytes. Of a plain store nvcc makes four, where it finds that another branch begins alike.
template <class Vector> BOOST_EXT_DEVICE Vector load_whole(const void* from) {
#if defined(BOOST_EXT_CUDA_EMULATOR)
  Vector x;
  emulator::access(&x, from, sizeof x, false);
  return x;
#else
  return *static_cast<const Vector*>(from);
#endif
}
BOOST_EXT_DEVICE void store_whole(void* to, uint4 x) {
#if defined(BOOST_EXT_CUDA_EMULATOR)
  emulator::access(to, &x, sizeof x, true);
#elif defined(__CUDA_ARCH__)
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
#else
  *static_cast<uint4*>(to) = x;
#endif
}
BOOST_EXT_DEVICE void store_whole(void* to, uint2 x) {
#if defined(BOOST_EXT_CUDA_EMULATOR)
  emulator::access(to, &x, sizeof x, true);
#elif defined(__CUDA_ARCH__)
  asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(x.x), "r"(x.y) : "memory");
#else
  *static_cast<uint2*>(to) = x;
#endif
}

// Of two lanes, each gives the other half of what it has: packs of 32 bytes become two lines of 16 bytes a lane, whose
// neighbours fill a sector; and back.
BOOST_EXT_DEVICE void exchange(Raw& raw) {
  const bool odd = threadIdx.x % 2 != 0;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const unsigned got = __shfl_xor_sync(kWholeWarp, odd ? raw.word[j] : raw.word[4 + j], 1);
    raw.word[j] = odd ? got : raw.word[j];
    raw.word[4 + j] = odd ? raw.word[4 + j] : got;
  }
}

// Words in shared memory, a part of it for each warp, with gaps so that lanes which read side by side meet in no bank.
BOOST_EXT_DEVICE int staged(int word) { return word + word / 8; }
BOOST_EXT_DEVICE unsigned* stage() {
  constexpr int kWords = kWarp * kPack + 1;
  __shared__ unsigned words[kThreads / kWarp][kWords + kWords / 8 + 1];
  return words[threadIdx.x / kWarp];
}
BOOST_EXT_DEVICE unsigned char* staged_bytes(int word) {
  return reinterpret_cast<unsigned char*>(stage() + staged(word));
}

// The memory of a warp's packs, `words` of 4 bytes a lane, as words that are aligned: the first and the last of
// 32 * words + 1 belong to it in part, if it is not; their four bytes are moved by four lanes.
struct Span {
  char* begin;  // aligned
  int shift;    // bytes from there to the first pack
  int words;
  BOOST_EXT_DEVICE Span(const char* mine, int words_of_pack) : words(words_of_pack) {
    const auto first = reinterpret_cast<std::uintptr_t>(mine) - threadIdx.x % kWarp * 4 * words_of_pack;
    shift = static_cast<int>(first % 4);
    begin = reinterpret_cast<char*>(first - shift);
  }
  BOOST_EXT_DEVICE unsigned* word(int w) const { return reinterpret_cast<unsigned*>(begin) + w; }
  BOOST_EXT_DEVICE bool whole(int w) const { return shift == 0 || w > 0; }
  BOOST_EXT_DEVICE bool has_edges() const { return shift != 0 && threadIdx.x % kWarp < 4; }
  // The byte of this lane in the first word, or else in the last one.
  BOOST_EXT_DEVICE bool in_first() const { return static_cast<int>(threadIdx.x) % kWarp >= shift; }
  BOOST_EXT_DEVICE unsigned char* edge() const {
    return reinterpret_cast<unsigned char*>(begin) + (in_first() ? 0 : 4 * kWarp * words) + threadIdx.x % kWarp;
  }
};
BOOST_EXT_DEVICE unsigned shifted(unsigned low, unsigned high, int bytes) {
  return static_cast<unsigned>((static_cast<std::uint64_t>(high) << 32 | low) >> (8 * bytes));
}

// Words of a span, a lane beside the other.
BOOST_EXT_DEVICE Raw load_span(const Span& span) {
  Raw raw{};
#pragma unroll
  for (int r = 0; r < kPack; ++r) {
    const int w = r * kWarp + static_cast<int>(threadIdx.x) % kWarp;
    if (r < span.words && span.whole(w)) raw.word[r] = *span.word(w);
  }
  return raw;
}
// The packs that they are.
BOOST_EXT_DEVICE Raw packs_of(const Span& span, const Raw& raw) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  unsigned* const words = stage();
  __syncwarp();  // somebody may still read what was there before
#pragma unroll
  for (int r = 0; r < kPack; ++r) {
    const int w = r * kWarp + lane;
    if (r < span.words && span.whole(w)) words[staged(w)] = raw.word[r];
  }
  if (span.has_edges()) {
    const unsigned char edge = *span.edge();
    staged_bytes(0)[lane] = span.in_first() ? edge : 0;
    staged_bytes(kWarp * span.words)[lane] = span.in_first() ? 0 : edge;
  }
  __syncwarp();
  Raw packs{};
  unsigned low = words[staged(span.words * lane)];
#pragma unroll
  for (int m = 0; m < kPack; ++m) {
    if (m >= span.words) continue;
    const bool more = m + 1 < span.words || span.shift != 0;
    const unsigned high = more ? words[staged(span.words * lane + m + 1)] : 0;
    packs.word[m] = shifted(low, high, span.shift);
    low = high;
  }
  return packs;
}
BOOST_EXT_DEVICE void store_span(const Span& span, const Raw& packs) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  unsigned* const words = stage();
  __syncwarp();
#pragma unroll
  for (int m = 0; m < kPack; ++m) {
    if (m < span.words) words[staged(span.words * lane + m)] = packs.word[m];
  }
  __syncwarp();
#pragma unroll
  for (int r = 0; r < kPack; ++r) {
    const int w = r * kWarp + lane;
    if (r >= span.words || !span.whole(w)) continue;
    const unsigned before = span.shift != 0 ? words[staged(w - 1)] : 0;
    *span.word(w) = shifted(before, words[staged(w)], 4 - span.shift);
  }
  if (span.has_edges()) {
    const int byte = lane - span.shift + (span.in_first() ? 0 : 4 * kWarp * span.words);
    *span.edge() = staged_bytes(byte / 4)[byte % 4];
  }
}

BOOST_EXT_DEVICE bool is_aligned(const char* pack, int words) {
  return reinterpret_cast<std::uintptr_t>(pack) % (words == 2 ? 8 : 16) == 0;
}

// A whole pack that a lane reads by itself, aligned. To read it asks for no branch and no conversion, behind which
// other reads would have to wait.
BOOST_EXT_DEVICE void set_half(Raw& raw, int half, uint4 x) {
  raw.word[4 * half] = x.x, raw.word[4 * half + 1] = x.y, raw.word[4 * half + 2] = x.z, raw.word[4 * half + 3] = x.w;
}
BOOST_EXT_DEVICE Raw load_raw(const char* from, int words, int apart = 16) {
  Raw raw{};
  set_half(raw, 0, load_whole<uint4>(from));
  if (words == 8) set_half(raw, 1, load_whole<uint4>(from + apart));
  return raw;
}
BOOST_EXT_DEVICE Raw load_raw(const void* p, DType t, std::int64_t i) {
  return load_raw(pack_at(p, t, i), words_of(t));
}

// Where the first 16 of the 32 bytes lie that a lane reads when two exchange halves; the others are 32 bytes on.
template <class Byte> BOOST_EXT_DEVICE Byte* in_pairs(Byte* pack) { return pack - threadIdx.x % 2 * 16; }

// What has been read of a pack, and how: by its lane alone; in halves that two lanes exchange; in words of a span.
enum class Way : std::uint8_t { alone, pairs, span };

// A pack that is on its way, zeros behind its end: converted when it is asked for, so that other reads may begin
// before.
BOOST_EXT_DEVICE Pack unpacked(const Raw& raw, DType t);
struct Coming {
  Raw raw;
  DType type;
  Way way;
  const char* from;

  BOOST_EXT_DEVICE Raw packs(int words) const {
    if (way == Way::span) return packs_of(Span(from, words), raw);
    Raw own = raw;
    if (way == Way::pairs) exchange(own);
    return own;
  }
  BOOST_EXT_DEVICE Pack get() const { return unpacked(packs(words_of(type)), type); }
};

// Of a warp that reads together.
BOOST_EXT_DEVICE Coming coming_aligned(const char* from, DType t, int words) {
  if (words == 2) {
    const auto x = load_whole<uint2>(from);
    return {{{x.x, x.y}}, t, Way::alone, from};
  }
  const bool pairs = words == 8;
  return {load_raw(pairs ? in_pairs(from) : from, words, 32), t, pairs ? Way::pairs : Way::alone, from};
}
BOOST_EXT_DEVICE Coming coming_together(const char* from, DType t, int words) {
  if (is_aligned(from, words)) return coming_aligned(from, t, words);
  return {load_span(Span(from, words)), t, Way::span, from};
}

// n elements from i on. `aligned`: p is so to 16 bytes, and i is a multiple of kPack.
BOOST_EXT_DEVICE Coming coming_pack(const void* p, DType t, std::int64_t i, Count n, bool aligned) {
  if (n.together) return coming_together(pack_at(p, t, i), t, words_of(t));
  if (aligned && n == kPack) return {load_raw(p, t, i), t, Way::alone, nullptr};
  Coming coming{{}, DType::f32, Way::alone, nullptr};
#pragma unroll
  for (int j = 0; j < kPack; ++j) coming.raw.word[j] = j < n ? __float_as_uint(load(p, t, i + j)) : 0;
  return coming;
}

BOOST_EXT_DEVICE Pack unpacked(const Raw& raw, DType t) {
  Pack x;
  if (t == DType::f32) {
#pragma unroll
    for (int j = 0; j < kPack; ++j) x.v[j] = __uint_as_float(raw.word[j]);
    return x;
  }
#pragma unroll
  for (int j = 0; j < kPack; ++j) {
    const auto half = static_cast<unsigned short>(j % 2 ? raw.word[j / 2] >> 16 : raw.word[j / 2] & 0xffffu);
    x.v[j] = t == DType::f16 ? __half2float(__ushort_as_half(half)) : __uint_as_float(unsigned{half} << 16);
  }
  return x;
}

// The same, for who needs them now.
BOOST_EXT_DEVICE Pack load_pack(const void* p, DType t, std::int64_t i, Count n, bool aligned) {
  return coming_pack(p, t, i, n, aligned).get();
}

BOOST_EXT_DEVICE unsigned half_bits(DType t, float x) {
  return t == DType::f16 ? __half_as_ushort(__float2half_rn(x)) : __bfloat16_as_ushort(__float2bfloat16_rn(x));
}
BOOST_EXT_DEVICE Raw packed(DType t, const Pack& x) {
  Raw raw{};
  if (t == DType::f32) {
#pragma unroll
    for (int j = 0; j < kPack; ++j) raw.word[j] = __float_as_uint(x.v[j]);
    return raw;
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) raw.word[j] = half_bits(t, x.v[2 * j]) | half_bits(t, x.v[2 * j + 1]) << 16;
  return raw;
}

// A whole pack, which is aligned if its lane writes it alone, or where that is known.
BOOST_EXT_DEVICE void store_raw(char* to, int words, bool together, bool aligned, Raw raw) {
  if (together && !aligned && !is_aligned(to, words)) return store_span(Span(to, words), raw);
  if (words == 2) return store_whole(to, make_uint2(raw.word[0], raw.word[1]));
  const bool pairs = together && words == 8;
  if (pairs) exchange(raw), to = in_pairs(to);
  store_whole(to, make_uint4(raw.word[0], raw.word[1], raw.word[2], raw.word[3]));
  if (words == 8) {
    store_whole(to + (pairs ? 32 : 16), make_uint4(raw.word[4], raw.word[5], raw.word[6], raw.word[7]));
  }
}
BOOST_EXT_DEVICE void store_pack(void* p, DType t, std::int64_t i, Count n, bool aligned, const Pack& x) {
  if (n.together || (aligned && n == kPack)) {
    return store_raw(pack_at(p, t, i), words_of(t), n.together, n.aligned, packed(t, x));
  }
#pragma unroll
  for (int j = 0; j < kPack; ++j) {
    if (j < n) store(p, t, i + j, x.v[j]);
  }
}

// Bit by bit: a conversion would lose which nan it is.
BOOST_EXT_DEVICE void copy_pack(void* to, const void* from, DType t, std::int64_t i, Count n, bool aligned) {
  if (n.together || (aligned && n == kPack)) {
    const Raw raw = coming_pack(from, t, i, n, aligned).packs(words_of(t));
    store_raw(pack_at(to, t, i), words_of(t), n.together, n.aligned, raw);
  } else if (t == DType::f32) {
    for (int j = 0; j < n; ++j) static_cast<unsigned*>(to)[i + j] = static_cast<const unsigned*>(from)[i + j];
  } else {
    for (int j = 0; j < n; ++j)
      static_cast<unsigned short*>(to)[i + j] = static_cast<const unsigned short*>(from)[i + j];
  }
}

}  // namespace boost_ext::cuda
