// Launches a kernel on emulated cores. One runs at a time, each until its end or its next SyncAll, in a random order
// that the seed decides: so atomic additions come in a random order, too.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <numeric>
#include <random>
#include <set>
#include <thread>
#include <type_traits>

#include "core.h"

namespace emulator {

class Launch {
 public:
  Launch(int blocks, std::function<void()> kernel)
      : kernel_(std::move(kernel)), states_(static_cast<std::size_t>(blocks), kReady) {
    for (int b = 0; b < blocks; ++b) cores_.push_back(std::make_unique<Core>(b, blocks));
  }

  void run() {
    ++epoch;
    std::vector<std::thread> threads;
    for (std::size_t b = 0; b < states_.size(); ++b) {
      threads.emplace_back([this, b] { body(static_cast<int>(b)); });
    }
    std::mt19937 random(settings.seed);
    std::vector<int> order(states_.size());
    std::iota(order.begin(), order.end(), 0);
    while (!error_ && count(kDone) == 0) {
      std::shuffle(order.begin(), order.end(), random);
      for (const int b : order) {
        if (error_) break;
        give(b);
      }
      if (!error_ && count(kDone) != 0 && count(kWaiting) != 0) {
        error_ = std::make_exception_ptr(Error("SyncAll: some cores ended without it, the others wait for ever"));
      }
      ++epoch;
    }
    stopping_ = true;
    for (const int b : order) {
      if (states_[static_cast<std::size_t>(b)] != kDone) give(b);
    }
    for (std::thread& t : threads) t.join();
    ++epoch;
    if (error_) std::rethrow_exception(error_);
  }

  // From inside a kernel: lets the others come as far.
  void wait() {
    const int me = core().block;
    std::unique_lock<std::mutex> lock(mutex_);
    states_[static_cast<std::size_t>(me)] = kWaiting;
    turn_ = -1;
    changed_.notify_all();
    changed_.wait(lock, [&] { return turn_ == me; });
    if (stopping_) throw Stop();
  }

  static inline Launch* running = nullptr;

 private:
  enum State { kReady, kWaiting, kDone };
  struct Stop {};

  std::ptrdiff_t count(State s) const { return std::count(states_.begin(), states_.end(), s); }
  void give(int b) {
    std::unique_lock<std::mutex> lock(mutex_);
    turn_ = b;
    changed_.notify_all();
    changed_.wait(lock, [&] { return turn_ == -1; });
  }
  void body(int b) {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [&] { return turn_ == b; });
    }
    current = cores_[static_cast<std::size_t>(b)].get();
    try {
      if (!stopping_) {
        kernel_();
        current->finish();
      }
    } catch (const Stop&) {
    } catch (...) { error_ = std::current_exception(); }
    current = nullptr;
    const std::lock_guard<std::mutex> lock(mutex_);
    states_[static_cast<std::size_t>(b)] = kDone;
    turn_ = -1;
    changed_.notify_all();
  }

  std::function<void()> kernel_;
  std::vector<State> states_;
  std::vector<std::unique_ptr<Core>> cores_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int turn_ = -1;
  bool stopping_ = false;
  std::exception_ptr error_;
};

inline std::set<void*> streams;  // on which something was launched
inline int launches = 0;         // so far

// What a kernel may get: numbers, pointers, and plain structures of them.
template <class... Arguments> void expect_plain_arguments(const Arguments&...) {
  static_assert(((std::is_trivial_v<Arguments> && std::is_standard_layout_v<Arguments>) && ...),
                "arguments of a kernel must be plain data");
}

// Throws Error at the first mistake of a kernel.
inline void launch(int blocks, std::function<void()> kernel) {
  expect(blocks >= 1 && blocks <= 65535, "launch: 1 to 65535 blocks, got ", blocks);
  ++launches;
  Launch launch(blocks, std::move(kernel));
  Launch::running = &launch;
  launch.run();
}

}  // namespace emulator

namespace AscendC {
inline std::int64_t GetBlockIdx() { return emulator::core().block; }
inline std::int64_t GetBlockNum() { return emulator::core().blocks; }
}  // namespace AscendC
