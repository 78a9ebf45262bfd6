#include "ops/pool.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

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

// As long as the system takes to wake a thread: 45 microseconds on some machines, more than 100 on a virtual one.
constexpr std::chrono::microseconds kWatch(100);

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Until ready() or for kWatch.
template <class Ready> void watch(Ready ready, void (*between)() = pause) {
  using Clock = std::chrono::steady_clock;
  for (const auto end = Clock::now() + kWatch; !ready() && Clock::now() < end;) between();
}

// The mutex is held for some instructions only: who slept until it is free would be woken long after.
class Lock : public std::unique_lock<std::mutex> {
 public:
  explicit Lock(std::mutex& mutex) : std::unique_lock<std::mutex>(mutex, std::defer_lock) { again(); }
  void again() {
    watch([this] { return try_lock(); });
    if (!owns_lock()) lock();
  }
};

// A thread that waits for work, on any core but its caller's: the system of a virtual machine takes a core that sleeps
// for one that works, wakes a thread on the core of who wakes it, and there it gets no time before the job is done.
class Worker {
 public:
  explicit Worker(std::thread thread) : thread_(thread.native_handle()) { thread.detach(); }

  void leave(int core) {
    if (core == callers_) return;
    callers_ = core;
    cpu_set_t cores;
    if (pthread_getaffinity_np(thread_, sizeof cores, &cores) != 0) return;
    if (left_ >= 0) CPU_SET(static_cast<unsigned>(left_), &cores);
    left_ = CPU_ISSET(static_cast<unsigned>(core), &cores) && CPU_COUNT(&cores) > 1 ? core : -1;
    if (left_ >= 0) CPU_CLR(static_cast<unsigned>(left_), &cores);
    pthread_setaffinity_np(thread_, sizeof cores, &cores);
  }

 private:
  std::thread::native_handle_type thread_;
  int callers_ = -1, left_ = -1;  // the caller's core; that core, if the thread might run there
};

class Pool {
 public:
  // False if the pool is taken; nothing has been done then.
  bool run(int threads, Job& job) {
    const std::unique_lock<std::mutex> owner(busy_, std::try_to_lock);
    if (!owner.owns_lock()) return false;
    grow(threads - 1);
    const int here = sched_getcpu();
    for (Worker& worker : workers_) worker.leave(here);
    {
      const Lock lock(mutex_);
      job_ = &job;
      places_ = threads - 1;
    }
    for (int i = 1; i < threads; ++i) wake_.notify_one();
    job.work();
    {
      const Lock lock(mutex_);
      places_ = 0;  // whoever wakes up now has come too late, and nobody waits for him
    }
    // What is left is a part of one chunk: to sleep and be woken would take longer.
    watch([&] { return inside_.load(std::memory_order_acquire) == 0; });
    Lock lock(mutex_);
    left_.wait(lock, [&] { return inside_ == 0; });
    return true;
  }

 private:
  void grow(int wanted) {
    workers_.reserve(static_cast<std::size_t>(wanted));
    while (static_cast<int>(workers_.size()) < wanted) {
      sigset_t all, before;  // signals are for Python's main thread
      sigfillset(&all);
      pthread_sigmask(SIG_SETMASK, &all, &before);
      bool started = true;
      try {
        workers_.emplace_back(std::thread([this] { serve(); }));
      } catch (const std::system_error&) {
        started = false;  // the machine gives no more threads; the work gets done by those there are
      }
      pthread_sigmask(SIG_SETMASK, &before, nullptr);
      if (!started) return;
    }
  }

  void serve() {
    const IeeeModes keep;  // a thread begins with the modes of the thread that started it
    Lock lock(mutex_);
    for (;;) {
      if (places_ > 0) {
        --places_;
        ++inside_;
        Job* const job = job_;
        lock.unlock();
        job->work();
        lock.again();
        if (--inside_ == 0) left_.notify_one();
      }
      // Also where it has come too late for a job: so it is awake for the next one. Whoever has work, such as a caller
      // on the same core, goes first.
      lock.unlock();
      watch([&] { return places_.load(std::memory_order_acquire) > 0; }, [] { std::this_thread::yield(); });
      lock.again();
      if (places_ == 0) wake_.wait(lock);
    }
  }

  std::mutex busy_;  // held by the caller whose job it is
  std::vector<Worker> workers_;
  std::mutex mutex_;  // guards all below
  std::condition_variable wake_;
  std::condition_variable left_;
  Job* job_ = nullptr;
  std::atomic<int> places_{0};  // of the job, for workers
  std::atomic<int> inside_{0};
};

// Never destroyed: its threads sleep on it until the process ends.
Pool& pool() {
  static Pool* const p = new Pool;
  return *p;
}

// The functions of the library that GCC makes its OpenMP of.
struct OpenMp {
  void (*parallel)(void (*function)(void*), void* data, unsigned threads, unsigned flags) = nullptr;
  int (*max_threads)() = nullptr;

  OpenMp() {
    void* const library = dlopen("libgomp.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (library == nullptr) return;
    parallel = reinterpret_cast<decltype(parallel)>(dlsym(library, "GOMP_parallel"));
    max_threads = reinterpret_cast<decltype(max_threads)>(dlsym(library, "omp_get_max_threads"));
  }
  bool is_there() const { return parallel != nullptr && max_threads != nullptr; }

  // By a whole team, which another size would end, and start again for its next user; the job has but some places.
  void run(int threads, Job& job) const {
    struct Places {
      Job* job;
      std::atomic<int> left;
    } places{&job, {threads}};
    const auto take = [](void* data) {
      auto& all = *static_cast<Places*>(data);
      const IeeeModes keep;
      if (all.left.fetch_sub(1, std::memory_order_relaxed) > 0) all.job->work();
    };
    parallel(take, &places, static_cast<unsigned>(std::max(threads, max_threads())), 0);
  }
};
thread_local bool on_openmp = false;

std::atomic<bool> is_child{false};
[[maybe_unused]] const int at_fork = pthread_atfork(nullptr, nullptr, [] { is_child.store(true); });

}  // namespace

OnOpenMp::OnOpenMp(bool is_on) : before_(on_openmp) { on_openmp = is_on; }
OnOpenMp::~OnOpenMp() { on_openmp = before_; }

bool forked() { return is_child.load(std::memory_order_relaxed); }

void run_chunks(int threads, std::int64_t items, std::int64_t chunk, ChunkFunction function, void* body) {
  if (threads > 1 && items > chunk && !forked()) {
    Job job{function, body, items, chunk};
    if (on_openmp) {
      static const OpenMp openmp;
      if (openmp.is_there()) return openmp.run(threads, job);
    }
    if (pool().run(threads, job)) return;
  }
  function(body, 0, items);
}

}  // namespace boost_ext
