#include "ops/softmax.h"

#include "cpu/exponential.h"
#include "cpu/parallel.h"

namespace boost_ext::cpu::BOOST_EXT_ISA {
namespace {

constexpr std::int64_t kWork = 8, kGradientWork = 4;  // what an element costs, in elements that are copied

}  // namespace

void softmax(const Context& context, std::int64_t rows, std::int64_t n, const float* x, float* y) {
  on_threads(context.threads, kWork * rows * n, rows, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const float* const from = x + r * n;
      float* const to = y + r * n;
      const F most = all(largest_of(from, n));
      const double total = sum_of<Full>(n, [&](auto io, std::int64_t i) BOOST_EXT_INLINE_LAMBDA {
        const F e = exponential(io.load(from + i) - most);
        io.store(to + i, e);
        return io.only(e);
      });
      const auto share = static_cast<float>(1 / total);
      sweep<Full>(
          n, [&](auto io, std::int64_t i, auto) BOOST_EXT_INLINE_LAMBDA { io.store(to + i, share * io.load(to + i)); });
    }
  });
}

void softmax_gradient(const Context& context, std::int64_t rows, std::int64_t n, const float* dy, const float* y,
                      float* dx) {
  on_threads(context.threads, kGradientWork * rows * n, rows, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const float *const slope = dy + r * n, *const share = y + r * n;
      const double total = sum_of<Full>(
          n, [&](auto io, std::int64_t i) BOOST_EXT_INLINE_LAMBDA { return io.load(slope + i) * io.load(share + i); });
      const F mean = all(static_cast<float>(total));
      sweep<Full>(n, [&](auto io, std::int64_t i, auto) BOOST_EXT_INLINE_LAMBDA {
        io.store(dx + r * n + i, io.load(share + i) * (io.load(slope + i) - mean));
      });
    }
  });
}

}  // namespace boost_ext::cpu::BOOST_EXT_ISA
