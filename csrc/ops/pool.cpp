#include "ops/pool.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>

#include "ops/ieee_modes.h"

namespace boost_ext {
namespace {

struct Job {
  ChunkFunction function;
  void* body;
  std::int64_t items;
  std::int64_t chunk;
  std::atomic<std::int64_t> next{0};

  void work() {
    for (;;) {
      const std::int64_t begin = next.fetch_add(chunk, std::memory_order_relaxed);
      if (begin >= items) return;
      function(body, begin, std::min(begin + chunk, items));
    }
  }
};

constexpr int kSpins = 2000;  // some 50 microseconds
void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

class Pool {
 public:
  // False if the pool is taken; nothing has been done then.
  bool run(int threads, Job& job) {
    const std::unique_lock<std::mutex> owner(busy_, std::try_to_lock);
    if (!owner.owns_lock()) return false;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      grow(threads - 1);
      job_ = &job;
      places_ = threads - 1;
    }
    for (int i = 1; i < threads; ++i) wake_.notify_one();
    job.work();
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      job_ = nullptr;  // whoever wakes up now has come too late, and nobody waits for him
    }
    // What is left is a part of one chunk: to sleep and be woken would take longer.
    for (int i = 0; i < kSpins && inside_.load(std::memory_order_acquire) != 0; ++i) pause();
    std::unique_lock<std::mutex> lock(mutex_);
    left_.wait(lock, [&] { return inside_ == 0; });
    return true;
  }

 private:
  void grow(int wanted) {
    for (; workers_ < wanted; ++workers_) {
      sigset_t all, before;  // signals are for Python's main thread
      sigfillset(&all);
      pthread_sigmask(SIG_SETMASK, &all, &before);
      bool started = true;
      try {
        std::thread([this] { serve(); }).detach();
      } catch (const std::system_error&) {
        started = false;  // the machine gives no more threads; the work gets done by those there are
      }
      pthread_sigmask(SIG_SETMASK, &before, nullptr);
      if (!started) return;
    }
  }

  void serve() {
    const IeeeModes keep;  // a thread begins with the modes of the thread that started it
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      wake_.wait(lock, [&] { return job_ != nullptr && places_ > 0; });
      --places_;
      ++inside_;
      Job* const job = job_;
      lock.unlock();
      job->work();
      lock.lock();
      if (--inside_ == 0) left_.notify_one();
    }
  }

  std::mutex busy_;   // held by the caller whose job it is
  std::mutex mutex_;  // guards all below
  std::condition_variable wake_;
  std::condition_variable left_;
  Job* job_ = nullptr;
  int places_ = 0;
  std::atomic<int> inside_{0};
  int workers_ = 0;
};

// Never destroyed: its threads sleep on it until the process ends.
Pool& pool() {
  static Pool* const p = new Pool;
  return *p;
}

std::atomic<bool> is_child{false};
[[maybe_unused]] const int at_fork = pthread_atfork(nullptr, nullptr, [] { is_child.store(true); });

}  // namespace

bool forked() { return is_child.load(std::memory_order_relaxed); }

void run_chunks(int threads, std::int64_t items, std::int64_t chunk, ChunkFunction function, void* body) {
  if (threads > 1 && items > chunk && !forked()) {
    Job job{function, body, items, chunk};
    if (pool().run(threads, job)) return;
  }
  function(body, 0, items);
}

}  // namespace boost_ext
