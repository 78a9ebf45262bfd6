#include "fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <new>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#define BOOST_EXT_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define BOOST_EXT_ASAN 1
#endif
#endif
#ifdef BOOST_EXT_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace boost_ext::cuda::emulator {

namespace {

// Parameters of a kernel are up to 32 KiB of it. Only pages that are used exist.
#ifdef BOOST_EXT_ASAN
constexpr std::size_t kStackBytes = 512 * 1024;
#else
constexpr std::size_t kStackBytes = 128 * 1024;
#endif

Fiber* running = nullptr;

// Each above a page that cannot be touched: a kernel that needs more stack ends the process there.
class Stacks {
 public:
  Stacks() = default;
  Stacks(const Stacks&) = delete;
  Stacks& operator=(const Stacks&) = delete;
  ~Stacks() {
    for (unsigned char* s : stacks_) munmap(s - guard_, guard_ + kStackBytes);
  }
  unsigned char* get(std::size_t number) {
    while (stacks_.size() <= number) {
      stacks_.reserve(stacks_.size() + 1);
      void* memory = mmap(nullptr, guard_ + kStackBytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
      if (memory == MAP_FAILED) throw std::bad_alloc();
      stacks_.push_back(static_cast<unsigned char*>(memory) + guard_);
      if (mprotect(memory, guard_, PROT_NONE) != 0) throw std::bad_alloc();
    }
    return stacks_[number];
  }

 private:
  std::size_t guard_ = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  std::vector<unsigned char*> stacks_;
};

Stacks stacks;

#ifdef BOOST_EXT_CUDA_FAST_SWITCH
// Keeps what the System V calling convention wants kept; the rest is the caller's. No kernel changes rounding modes.
__attribute__((naked, noinline)) void switch_stack(void** /*from: rdi*/, void* /*to: rsi*/) {
  asm("pushq %rbp\n\t"
      "pushq %rbx\n\t"
      "pushq %r12\n\t"
      "pushq %r13\n\t"
      "pushq %r14\n\t"
      "pushq %r15\n\t"
      "movq %rsp, (%rdi)\n\t"
      "movq %rsi, %rsp\n\t"
      "popq %r15\n\t"
      "popq %r14\n\t"
      "popq %r13\n\t"
      "popq %r12\n\t"
      "popq %rbx\n\t"
      "popq %rbp\n\t"
      "ret");
}
#endif

}  // namespace

void Fiber::prepare(std::size_t number, Body body) {
  stack_ = stacks.get(number);
  body_ = body;
#ifdef BOOST_EXT_ASAN
  ASAN_UNPOISON_MEMORY_REGION(stack_, kStackBytes);
#endif
#ifdef BOOST_EXT_CUDA_FAST_SWITCH
  // The tops lie apart by cache lines, or all would compete for the same few of the cache.
  auto* top = reinterpret_cast<void**>(stack_ + kStackBytes - number % 61 * 64);
  *--top = nullptr;  // no caller
  *--top = reinterpret_cast<void*>(&Fiber::enter);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  context_ = top;
#else
  getcontext(&context_);
  context_.uc_stack.ss_sp = stack_;
  context_.uc_stack.ss_size = kStackBytes;
  context_.uc_link = nullptr;
  makecontext(&context_, &Fiber::enter, 0);
#endif
}

void Fiber::switch_to(Context& from, Context& to) {
#ifdef BOOST_EXT_CUDA_FAST_SWITCH
  switch_stack(&from, to);
#else
  swapcontext(&from, &to);
#endif
}

void Fiber::resume() {
  running = this;
#ifdef BOOST_EXT_ASAN
  void* fake_stack = nullptr;
  __sanitizer_start_switch_fiber(&fake_stack, stack_, kStackBytes);
#endif
  switch_to(caller_, context_);
#ifdef BOOST_EXT_ASAN
  __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
  running = nullptr;
}

void Fiber::leave([[maybe_unused]] void** fake_stack) {
#ifdef BOOST_EXT_ASAN
  __sanitizer_start_switch_fiber(fake_stack, caller_stack_, caller_bytes_);
#endif
  switch_to(context_, caller_);
#ifdef BOOST_EXT_ASAN
  __sanitizer_finish_switch_fiber(fake_stack_, &caller_stack_, &caller_bytes_);
#endif
}

void Fiber::suspend() { running->leave(&running->fake_stack_); }

void Fiber::enter() {
  Fiber& me = *running;
#ifdef BOOST_EXT_ASAN
  __sanitizer_finish_switch_fiber(nullptr, &me.caller_stack_, &me.caller_bytes_);
#endif
  me.body_();
  me.leave(nullptr);
  std::abort();  // resumed after its end
}

}  // namespace boost_ext::cuda::emulator
