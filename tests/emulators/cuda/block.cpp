#include "block.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <mutex>
#include <numeric>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "collective.h"
#include "fiber.h"
#include "watch.h"

namespace boost_ext::cuda::emulator {

namespace {

// splitmix64 (Steele, Lea, Flood 2014).
struct Random {
  std::uint64_t state;
  std::uint64_t next() {
    std::uint64_t z = state += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
  }
  std::size_t below(std::size_t n) { return static_cast<std::size_t>((next() >> 32) * n >> 32); }
};

std::atomic<std::uint64_t> seed_{1};
std::atomic<std::uint64_t> launches_{0};

struct Thread {
  enum State : std::uint8_t { ready, at_barrier, in_warp, done };
  Fiber fiber;
  uint3 index{};
  unsigned number = 0;
  State state = ready;
  const char* function = nullptr;  // where it waits
  Where where{};
  bool predicate = false;
  WarpCall call{};
  std::uint64_t result = 0;
  std::uint32_t warp_since = 0;  // as in Clock
};

class Launch;
// One launch at a time: what a kernel asks at each access would be slow to reach as thread-local memory.
std::mutex one_launch_;
Launch* launch_ = nullptr;
thread_local bool inside_ = false;

std::string text(const uint3& v) {
  return "(" + std::to_string(v.x) + ", " + std::to_string(v.y) + ", " + std::to_string(v.z) + ")";
}

std::string text(const char* function, Where where) {
  const char* slash = std::strrchr(where.file, '/');
  return std::string(function) + " at " + (slash != nullptr ? slash + 1 : where.file) + ":" +
         std::to_string(where.line);
}

std::string text(const Thread& t) {
  if (t.state == Thread::done) return "thread " + text(t.index) + " has ended";
  return "thread " + text(t.index) + " waits in " + text(t.function, t.where);
}

class Launch {
 public:
  Launch(dim3 grid, dim3 block, void (*kernel)(void*), void* data)
      : number_(launches_++),
        seed_of_launch_(seed_),
        random_{seed_of_launch_ * 0x2545f4914f6cdd1d + number_},
        threads_(std::size_t{block.x} * block.y * block.z),
        warp_times_(threads_.size() / kWarp + 1),
        kernel_(kernel),
        data_(data) {
    ready_.reserve(threads_.size());
    for (unsigned t = 0; t < threads_.size(); ++t) {
      threads_[t].number = t;
      threads_[t].index = {t % block.x, t / block.x % block.y, t / block.x / block.y};
    }
    gridDim = grid;
    blockDim = block;
    launch_ = this;
    inside_ = true;
    watch_shared_memory();
  }
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;
  ~Launch() {
    launch_ = nullptr;
    inside_ = false;
  }

  void run_block() {
    ready_.clear();
    ended_ = arrived_ = 0;
    clock_now.block = ++clock_now.epoch;
    runs_ahead_ = random_.next() % 2 == 0;
    for (Thread& t : threads_) {
      t.fiber.prepare(t.number, [] { launch_->body(); });
    }
    make_all_ready();
    while (ended_ < threads_.size()) {
      if (ready_.empty()) fail_stalled();
      resume(choose());
      if (arrived_ == threads_.size()) release_barrier();
    }
  }

  unsigned barrier(const char* function, bool predicate, Where where) {
    Thread& me = *current_;
    me.predicate = predicate;
    ++arrived_;
    wait(me, Thread::at_barrier, function, where);
    return static_cast<unsigned>(me.result);
  }

  std::uint64_t warp(const char* function, const WarpCall& call, Where where) {
    Thread& me = *current_;
    const unsigned lane = me.number % kWarp;
    me.function = function;
    me.where = where;
    if ((call.mask >> lane & 1) == 0) fail(text(function, where), ": lane ", lane, " is not in its own mask");
    if (call.width == 0 || call.width > kWarp || (call.width & (call.width - 1)) != 0) {
      fail(text(function, where), ": a width of ", call.width);
    }
    if (lanes_of(me) < kWarp && call.mask >> lanes_of(me) != 0) {
      fail(text(function, where), ": the mask names lanes that the last warp of ", threads_.size(),
           " threads does not have");
    }
    me.call = call;
    me.state = Thread::in_warp;
    if (complete(me)) {
      finish(me);
      me.state = Thread::ready;
    } else {
      Fiber::suspend();
    }
    return me.result;
  }

  void give_up(const std::string& mistake) {
    try {
      fail(mistake);
    } catch (...) { error_ = std::current_exception(); }
    Fiber::suspend();  // for ever: the launch ends
  }

  Random& random() { return random_; }

 private:
  template <class... Parts> [[noreturn]] void fail(const Parts&... parts) const {
    std::ostringstream s;
    (s << ... << parts);
    s << ", in block " << text(blockIdx) << " (seed " << seed_of_launch_ << ", launch " << number_ << ")";
    throw std::logic_error(s.str());
  }

  void body() {
    try {
      kernel_(data_);
    } catch (...) { error_ = std::current_exception(); }
    current_->state = Thread::done;
    ++ended_;
  }

  void make_ready(Thread& t) {
    t.state = Thread::ready;
    ready_.push_back(t.number);
  }

  // Beginning with any warp, since the last ones may be chosen first.
  void make_all_ready() {
    const std::size_t n = threads_.size(), start = random_.below((n + kWarp - 1) / kWarp) * kWarp;
    for (std::size_t i = 0; i < n; ++i) make_ready(threads_[(start + i) % n]);
  }

  // Any one; in some blocks, one of those that became ready last, so that warps run far ahead of one another.
  Thread& choose() {
    const std::size_t n = ready_.size(), last = runs_ahead_ ? std::min<std::size_t>(n, 4) : n;
    const std::size_t i = n - last + random_.below(last);
    Thread& chosen = threads_[ready_[i]];
    ready_[i] = ready_.back();
    ready_.pop_back();
    return chosen;
  }

  void set_clock(const Thread& t) {
    clock_now.thread = t.number;
    clock_now.warp_time = warp_times_[t.number / kWarp];
    clock_now.warp_since = t.warp_since;
  }

  void resume(Thread& t) {
    current_ = &t;
    threadIdx = t.index;
    set_clock(t);
    clock_now.inside = true;
    t.fiber.resume();
    clock_now.inside = false;
    if (error_) std::rethrow_exception(error_);
  }

  void wait(Thread& me, Thread::State state, const char* function, Where where) {
    me.state = state;
    me.function = function;
    me.where = where;
    Fiber::suspend();
  }

  void release_barrier() {
    const Thread& first = threads_[0];
    unsigned count = 0;
    for (const Thread& t : threads_) {
      count += t.predicate ? 1 : 0;
      if (t.where.line != first.where.line || std::strcmp(t.where.file, first.where.file) != 0) {
        fail("the barrier is not the same one for all threads: ", text(first), ", ", text(t));
      }
    }
    arrived_ = 0;
    ++clock_now.epoch;
    for (Thread& t : threads_) t.result = count;
    make_all_ready();
  }

  unsigned first_of(const Thread& t) const { return t.number / kWarp * kWarp; }
  unsigned lanes_of(const Thread& t) const {
    return std::min(kWarp, static_cast<unsigned>(threads_.size()) - first_of(t));
  }

  static bool same_call(const Thread& a, const Thread& b) {
    return a.state == Thread::in_warp && a.call.op == b.call.op && a.call.mask == b.call.mask &&
           a.call.width == b.call.width;
  }

  bool complete(const Thread& me) const {
    const Thread* lanes = &threads_[first_of(me)];
    for (unsigned l = 0; l < lanes_of(me); ++l) {
      if ((me.call.mask >> l & 1) != 0 && !same_call(lanes[l], me)) return false;
    }
    return true;
  }

  void finish(const Thread& me) {
    Thread* lanes = &threads_[first_of(me)];
    const unsigned count = lanes_of(me);
    const WarpCall call = me.call;
    const auto of_mask = [&](unsigned lane) { return lane < count && (call.mask >> lane & 1) != 0; };
    Together together;
    for (unsigned l = 0; l < count; ++l) {
      if (of_mask(l)) together.add(lanes[l].call.value, l);
    }
    std::uint32_t& time = warp_times_[me.number / kWarp];
    if (call.op == WarpOp::sync) ++time;
    for (unsigned l = 0; l < count; ++l) {
      if (!of_mask(l)) continue;
      Thread& t = lanes[l];
      if (call.op == WarpOp::sync) t.warp_since = time;
      t.result = together.result(call.op, call.mask);
      if (is_shuffle(call.op)) {
        const unsigned from = source_lane(t.call, l);
        t.result = of_mask(from) ? lanes[from].call.value : ~std::uint64_t{0};
      }
      if (&t != &me) make_ready(t);
    }
    set_clock(me);
  }

  [[noreturn]] void fail_stalled() const {
    for (const Thread& t : threads_) {
      if (t.state != Thread::in_warp) continue;
      const Thread* lanes = &threads_[first_of(t)];
      for (unsigned l = 0; l < lanes_of(t); ++l) {
        if ((t.call.mask >> l & 1) != 0 && !same_call(lanes[l], t)) {
          fail(text(t.function, t.where), ": not all lanes of its mask arrive: ", text(t), ", ", text(lanes[l]));
        }
      }
    }
    const Thread* waits = nullptr;
    const Thread* ended = nullptr;
    for (const Thread& t : threads_) (t.state == Thread::done ? ended : waits) = &t;
    fail(text(waits->function, waits->where), ": not all threads arrive: ", text(*waits), ", ", text(*ended));
  }

  std::uint64_t number_, seed_of_launch_;
  Random random_;
  std::vector<Thread> threads_;
  std::vector<std::uint32_t> warp_times_;  // as in Clock
  std::vector<unsigned> ready_;
  void (*kernel_)(void*);
  void* data_;
  Thread* current_ = nullptr;
  std::size_t ended_ = 0, arrived_ = 0;
  bool runs_ahead_ = false;
  std::exception_ptr error_;
};

Launch& launch_of(const char* function) {
  if (launch_ == nullptr) throw std::logic_error(std::string(function) + ": called outside of a kernel");
  return *launch_;
}

}  // namespace

unsigned barrier(const char* function, bool predicate, Where where) {
  return launch_of(function).barrier(function, predicate, where);
}

std::uint64_t warp(const char* function, const WarpCall& call, Where where) {
  return launch_of(function).warp(function, call, where);
}

void give_up(const std::string& mistake) { launch_of("a kernel").give_up(mistake); }

void fence() { std::atomic_thread_fence(std::memory_order_seq_cst); }

bool inside_a_kernel() { return inside_; }

void set_seed(std::uint64_t seed) {
  seed_ = seed;
  launches_ = 0;
}

void run(dim3 grid, dim3 block, void (*kernel)(void*), void* data) {
  if (inside_a_kernel()) throw std::logic_error("a kernel launches a kernel");
  const double blocks = static_cast<double>(grid.x) * grid.y * grid.z;
  if (blocks > 0x1p26) throw std::logic_error("the emulator is too slow for more than 2^26 blocks");
  std::vector<unsigned> order(static_cast<std::size_t>(blocks));
  std::iota(order.begin(), order.end(), 0U);
  const std::lock_guard<std::mutex> lock(one_launch_);
  Launch launch(grid, block, kernel, data);
  for (std::size_t i = order.size(); i > 0; --i) {
    std::swap(order[i - 1], order[launch.random().below(i)]);
    const unsigned b = order[i - 1];
    blockIdx = {b % grid.x, b / grid.x % grid.y, b / grid.x / grid.y};
    launch.run_block();
  }
}

}  // namespace boost_ext::cuda::emulator
