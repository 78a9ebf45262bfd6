#include "ops/dropout.h"

#include <cmath>

namespace boost_ext {
namespace {

DropoutShare share_of(double p) {
  const double halves = 65536, dropped = std::nearbyint(p * halves), kept = halves - dropped;
  return {static_cast<std::uint32_t>(dropped), kept > 0 ? static_cast<float>(halves / kept) : 0};
}

}  // namespace

void dropout(const Context& context, const View& x, double p, std::uint64_t seed, const Number& draw,
             std::uint32_t stream, std::int64_t shared, const View& out) {
  const char* op = kDropout.op;
  const Device device = check(kDropout, x, p, static_cast<std::int64_t>(seed), draw, std::int64_t{stream}, shared, out);
  require_size(op, "out", out, x.size);
  require(p >= 0 && p <= 1, op, ": p must be in 0..1, got ", p);
  require(shared >= 1 && x.size % shared == 0, op, ": shared must be >= 1 and divide the ", x.size,
          " elements of x, got ", shared);
  const DropoutShare share = share_of(p);
  const DropoutKey key{seed, static_cast<std::uint32_t>(static_cast<std::int64_t>(draw.value)), stream};
  const auto* at = static_cast<const std::int32_t*>(draw.at.data);
  if (device == Device::cuda) return BOOST_EXT_CUDA(dropout)(context, x, share, key, shared, out, at);
  BOOST_EXT_CPU(dropout)(context, x, share, key, shared, out);
}

DropoutKey read_dropout_key(const char* op, const View& key) {
  require_cpu(op, {}, {key});
  require_dtype(op, "key", key, DType::i32);
  require_size(op, "key", key, 4);
  const auto* word = static_cast<const std::uint32_t*>(key.data);
  return {word[0] | static_cast<std::uint64_t>(word[1]) << 32, word[2], word[3]};
}

void dropout_key(const View& state, std::int32_t stream, const View& key) {
  const char* op = "dropout_key";
  require_cpu(op, {}, {state, key});
  for (const View* v : {&state, &key}) {
    const Name arg = v == &state ? "state" : "key";
    require_dtype(op, arg, *v, DType::i32);
    require_size(op, arg, *v, 4);
    require_writable(op, arg, *v);
  }
  Overlap overlap(op);
  overlap.writes("state", state);
  overlap.writes("key", key);
  overlap.check();
  auto* from = static_cast<std::uint32_t*>(state.data);
  auto* to = static_cast<std::uint32_t*>(key.data);
  for (int i = 0; i < 3; ++i) to[i] = from[i];
  to[3] = static_cast<std::uint32_t>(stream);
  ++from[2];
}

}  // namespace boost_ext
