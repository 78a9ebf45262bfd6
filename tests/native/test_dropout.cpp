// dropout on exactly sized arrays, beside the generator as it is written down.
#include "harness.h"
#include "ops/dropout.h"

#define BOOST_EXT_BACKEND boost_ext::plain
#define BOOST_EXT_INLINE inline
#include "ops/philox.h"

namespace native {

using namespace boost_ext;

void test_dropout(const Context& context, DType dtype, std::int64_t n, std::mt19937& random);

void test_dropout(const Context& context, DType dtype, std::int64_t n, std::mt19937& random) {
  Array x(dtype, 6 * n), y(dtype, 6 * n);
  x.fill(random);
  const DropoutKey key{0x0123456789abcdef, 7, 3};
  for (const std::int64_t shared : {std::int64_t{1}, std::int64_t{2}, n > 0 ? n : 1}) {
    dropout(context, x.view(), 0.25, key.seed, Number{7, {}}, key.stream, shared, y.view());
    bool right = true;
    std::uint32_t word[4];  // of eight places
    for (std::int64_t i = 0, known = -1; i < y.size(); ++i) {
      const std::int64_t place = i / shared;
      if (place / 8 != known) {
        known = place / 8;
        plain::philox(plain::PhiloxRounds(key.seed), key.draw, key.stream, static_cast<std::uint64_t>(known), word);
      }
      const bool kept = (word[place % 8 / 2] >> 16 * (place % 2) & 0xffffu) >= 1u << 14;
      right = right && (kept ? close(y, i, x.get(i) * (1 / 0.75), 0) : y.get(i) == 0);
    }
    CHECK(right);
  }
  Array in_place(dtype, 6 * n);
  in_place.copy(x);
  dropout(context, in_place.view(), 0.25, key.seed, Number{7, {}}, key.stream, n > 0 ? n : 1, in_place.view());
  CHECK(in_place.same_bits(y));
}

}  // namespace native
