#include "ops/unscale_and_check.h"

#include "cpu/parallel.h"
#include "cpu/sums_of_products.h"

namespace boost_ext::cpu::BOOST_EXT_ISA {
namespace {

constexpr std::int64_t kBlock = 16384;

BOOST_EXT_INLINE std::int32_t to_bits(float x) {
  std::int32_t b;
  std::memcpy(&b, &x, sizeof b);
  return b;
}
BOOST_EXT_INLINE float to_float(std::int32_t b) {
  float x;
  std::memcpy(&x, &b, sizeof x);
  return x;
}

// What the storage type makes of a finite or infinite magnitude: rounding is monotonic, so the rounded maximum is the
// maximum of the rounded values.
template <class T> BOOST_EXT_INLINE std::int32_t stored_bits(std::int32_t magnitude) {
  if (magnitude > kInfBits) return magnitude;
  T narrow[kLanes];
  store(narrow, all(to_float(magnitude)));
  return to_bits(load(narrow).v[0][0]);
}

// The rare block with inf or nan, after it has been written: still in the cache.
template <class T> void count_special(const T* p, Block at, Finiteness& f) {
  f.max_abs = 0;
  for (std::int64_t i = 0; i < at.count; i += kLanes) {
    const std::int64_t n = at.count - i < kLanes ? at.count - i : kLanes;
    std::int32_t lane[kLanes];
    const I bits = magnitude_bits(Part{n}.load(p + i));
    std::memcpy(lane, &bits, sizeof lane);
    for (std::int64_t l = 0; l < n; ++l) {
      if (lane[l] < kInfBits) {
        if (to_float(lane[l]) > f.max_abs) f.max_abs = to_float(lane[l]);
        continue;
      }
      ++(lane[l] == kInfBits ? f.inf : f.nan);
      if (f.first < 0) f.first = at.begin + i + l;
    }
  }
}

// The magnitudes of sixteen bits are ordered as integers, too: what is only read is not converted, and bfloat16 comes
// and goes without a shuffle.
template <class T, bool kWrite> constexpr bool kAsShorts = sizeof(T) == 2 && !kWrite;
template <> constexpr bool kAsShorts<BFloat, true> = true;

template <bool kWrite, class T> BOOST_EXT_INLINE std::int32_t largest_short(T* p, float scale, std::int64_t n) {
  S largest[2] = {};
  sweep_shorts(n, [&](auto io, std::int64_t i, auto u) BOOST_EXT_INLINE_LAMBDA {
    S x = io.load_shorts(p + i);
    if (kWrite) {
      x = to_bfloats(scale * evens(x), scale * odds(x));
      io.store_shorts(p + i, x);
    }
    S& acc = largest[decltype(u)::value];
    acc = max(acc, magnitude_bits(x));
  });
  T bits[kLanes] = {{max_lane(max(largest[0], largest[1]))}};
  return to_bits(load(bits).v[0][0]);
}

template <bool kWrite, class T> BOOST_EXT_INLINE Finiteness check(T* p, float scale, Block at) {
  std::int32_t bits;
  if constexpr (kAsShorts<T, kWrite>) {
    bits = largest_short<kWrite>(p, scale, at.count);
  } else {
    I largest[kAccumulators] = {};
    sweep(at.count, [&](auto io, std::int64_t i, auto u) BOOST_EXT_INLINE_LAMBDA {
      F x = io.load(p + i);
      if (kWrite) {
        x = scale * x;
        io.store(p + i, x);
      }
      I& acc = largest[decltype(u)::value];
      acc = max(acc, magnitude_bits(x));
    });
    bits = stored_bits<T>(max_lane(max(max(largest[0], largest[1]), max(largest[2], largest[3]))));
  }
  Finiteness f;
  if (bits < kInfBits)
    f.max_abs = to_float(bits);
  else
    count_special(p, at, f);
  return f;
}

void add_up(Blocks& blocks, Scratch<Finiteness>& partial, std::int64_t tensors, Finiteness* per_tensor) {
  for (std::int64_t t = 0; t < tensors; ++t) {
    Finiteness& total = per_tensor[t];
    for (std::int64_t i = blocks.first(t); i < blocks.first(t + 1); ++i) {
      const Finiteness& f = partial[i];
      total.inf += f.inf;
      total.nan += f.nan;
      if (total.first < 0) total.first = f.first;
      if (f.max_abs > total.max_abs) total.max_abs = f.max_abs;
    }
  }
}

}  // namespace

void unscale_and_check(const Context& context, Tensors grads, float inv_scale, Finiteness* per_tensor) {
  Blocks blocks(grads, kBlock);
  Scratch<Finiteness> partial(blocks.count());
  blocks.run(context.threads, [&](Block at) {
    typed(grads[at.tensor], [&](auto* p) BOOST_EXT_INLINE_LAMBDA {
      partial[at.index] =
          inv_scale == 1 ? check<false>(p + at.begin, inv_scale, at) : check<true>(p + at.begin, inv_scale, at);
    });
  });
  add_up(blocks, partial, grads.count, per_tensor);
}

void check_and_square(const Context& context, Tensors grads, Finiteness* per_tensor, double* squares) {
  Blocks blocks(grads, kBlock);
  Scratch<Finiteness> partial(blocks.count());
  Scratch<double> sums(blocks.count());
  blocks.run(context.threads, [&](Block at) {
    typed(grads[at.tensor], [&](auto* p) BOOST_EXT_INLINE_LAMBDA {
      partial[at.index] = check<false>(p + at.begin, 1, at);
      sums[at.index] = sum_of_squares(p + at.begin, at.count);
    });
  });
  add_up(blocks, partial, grads.count, per_tensor);
  for (std::int64_t t = 0; t < grads.count; ++t) {
    squares[t] = 0;
    for (std::int64_t i = blocks.first(t); i < blocks.first(t + 1); ++i) squares[t] += sums[i];
  }
}

}  // namespace boost_ext::cpu::BOOST_EXT_ISA
