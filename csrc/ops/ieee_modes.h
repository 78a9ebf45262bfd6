// IEEE 754's default modes while one of these lives: subnormal numbers are kept, results rounded to nearest. A thread
// of MindSpore's graphs flushes subnormals to zero, one of PyTorch's does where the user asks for it, and results must
// not depend on the thread.
#pragma once

#include <cstdint>

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace boost_ext {

class IeeeModes {
 public:
  IeeeModes() : before_(get()) {
    if ((before_ & kModes) != 0) set(before_ & ~kModes);
  }
  ~IeeeModes() {
    if ((before_ & kModes) != 0) set(before_);
  }
  IeeeModes(const IeeeModes&) = delete;
  IeeeModes& operator=(const IeeeModes&) = delete;

 private:
#if defined(__SSE2__)
  using Register = unsigned;
  static constexpr Register kModes = 0x8040 | 0x6000;  // flush to zero, denormals are zero; rounding
  static Register get() { return _mm_getcsr(); }
  static void set(Register r) { _mm_setcsr(r); }
#elif defined(__aarch64__)
  using Register = std::uint64_t;
  static constexpr Register kModes = 0x1c80000;  // FZ, rounding, FZ16
  static Register get() {
    Register r;
    asm volatile("mrs %0, fpcr" : "=r"(r));
    return r;
  }
  static void set(Register r) { asm volatile("msr fpcr, %0" : : "r"(r)); }
#else
  using Register = unsigned;
  static constexpr Register kModes = 0;
  static Register get() { return 0; }
  static void set(Register) {}
#endif

  const Register before_;
};

}  // namespace boost_ext
