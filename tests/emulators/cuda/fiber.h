// A thread of a block: a stack of its own on the thread that launches, and the switch to it and back. There is one
// launch at a time.
//
// On x86-64 a switch is a few instructions; elsewhere, or with BOOST_EXT_CUDA_UCONTEXT, it is swapcontext, which makes
// a system call each time. The address sanitizer is told of each switch; the thread sanitizer is not.
#pragma once

#include <cstddef>

#if defined(__x86_64__) && !defined(BOOST_EXT_CUDA_UCONTEXT)
#define BOOST_EXT_CUDA_FAST_SWITCH 1
#else
#include <ucontext.h>
#endif

namespace boost_ext::cuda::emulator {

class Fiber {
 public:
  using Body = void (*)();

  // Stack `number`, made at its first use and kept. Whatever ran there is forgotten, without unwinding. The body must
  // not let an exception out.
  void prepare(std::size_t number, Body body);
  void resume();          // runs it until it suspends itself or its body ends
  static void suspend();  // from inside: back to who resumed it

 private:
#ifdef BOOST_EXT_CUDA_FAST_SWITCH
  using Context = void*;  // the stack pointer
#else
  using Context = ucontext_t;
#endif
  static void enter();
  static void switch_to(Context& from, Context& to);
  void leave(void** fake_stack);

  Context context_{}, caller_{};
  Body body_ = nullptr;
  unsigned char* stack_ = nullptr;
  void* fake_stack_ = nullptr;  // the address sanitizer's
  const void* caller_stack_ = nullptr;
  std::size_t caller_bytes_ = 0;
};

}  // namespace boost_ext::cuda::emulator
