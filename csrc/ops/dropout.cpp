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

void dropout_key(const Context&, const View& state, std::int64_t stream, const View& key) {
  check(kDropoutKey, state, stream, key);
  auto* from = static_cast<std::uint32_t*>(state.data);
  auto* to = static_cast<std::uint32_t*>(key.data);
  for (int i = 0; i < 3; ++i) to[i] = from[i];
  to[3] = static_cast<std::uint32_t>(stream);
  ++from[2];
}

void dropout_of_key(const Context& context, const View& x, const View& key, double p, bool rows, const View& out) {
  check(kDropoutOfKey, x, key, p, rows, out);
  const auto* word = static_cast<const std::uint32_t*>(key.data);
  const std::uint64_t seed = word[0] | static_cast<std::uint64_t>(word[1]) << 32;
  dropout(context, x, p, seed, Number{static_cast<double>(word[2]), {}}, word[3], rows ? x.width : 1, out);
}

}  // namespace boost_ext
