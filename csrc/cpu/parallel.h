// Blocks of tensors on threads. A block has a fixed size and lies within one tensor; what it computes does not depend
// on who computes it, so results are the same for any number of threads.
#pragma once

#include <cstdlib>
#include <new>

#include "cpu/sizes.h"
#include "cpu/sweep.h"
#include "ops/pool.h"

namespace boost_ext::cpu::BOOST_EXT_ISA {

// Uninitialised scratch memory for plain numbers, from the start of a cache line on, so that vectors lie in one each.
template <class T> class Scratch {
 public:
  explicit Scratch(std::int64_t n)
      : memory_(std::malloc(static_cast<std::size_t>(n > 0 ? n : 1) * sizeof(T) + kLine)),
        data_(reinterpret_cast<T*>((reinterpret_cast<std::uintptr_t>(memory_) + kLine - 1) / kLine * kLine)) {
    if (!memory_) throw std::bad_alloc();
  }
  ~Scratch() { std::free(memory_); }
  Scratch(Scratch&& other) noexcept : memory_(other.memory_), data_(other.data_) { other.memory_ = nullptr; }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  T& operator[](std::int64_t i) { return data_[i]; }
  T* get() { return data_; }
  const T* get() const { return data_; }

 private:
  static constexpr std::size_t kLine = 64;
  void* memory_;
  T* data_;
};

struct Block {
  std::int64_t index;  // over all tensors
  std::int64_t tensor;
  std::int64_t begin;  // first element within the tensor
  std::int64_t count;
};

// Below this many elements, some 15 microseconds, a second thread costs more than it brings. Tests for races have
// fewer.
#if defined(BOOST_EXT_ELEMENTS_PER_THREAD)
constexpr std::int64_t kElementsPerThread = BOOST_EXT_ELEMENTS_PER_THREAD;
#else
constexpr std::int64_t kElementsPerThread = 131072;
#endif
// Chunks a thread on average: small enough that a thread which loses its core holds up little.
constexpr std::int64_t kChunksPerThread = 8;

// fn(begin, end) for ranges that cover 0..items, of `chunk` items if it is given. `work` is the number of elements to
// be touched; eight multiply-adds of a product are one.
template <class Fn> void on_threads(int threads, std::int64_t work, std::int64_t items, Fn fn, std::int64_t chunk = 0) {
  const std::int64_t useful = 1 + work / kElementsPerThread;
  const std::int64_t n = threads < useful ? threads : useful;
  if (n <= 1 || items <= 1) return fn(std::int64_t{0}, items);
  const auto call = [](void* body, std::int64_t begin, std::int64_t end) { (*static_cast<Fn*>(body))(begin, end); };
  if (chunk == 0) chunk = 1 + (items - 1) / (n * kChunksPerThread);
  run_chunks(static_cast<int>(n), items, chunk, call, &fn);
}

// A block of tensors with so many elements, for loops that sum nothing over it. What says where the next one lies waits
// behind all that this one has asked the memory for, so large tensors have long blocks: a step of Adam took 0.9 of the
// time with 64K elements instead of 4K (AMD EPYC, Zen 5).
inline std::int64_t suitable_block(std::int64_t elements) {
  constexpr std::int64_t kLeast = 4096, kMost = 524288, kEnough = 128;  // of them for the threads of a large machine
  const std::int64_t even = elements / kEnough / kLeast * kLeast;
  return even < kLeast ? kLeast : even < kMost ? even : kMost;
}

// The blocks of a list of tensors, in order.
class Blocks {
 public:
  explicit Blocks(Tensors tensors, const unsigned char* by_row = nullptr) : Blocks(tensors, kSuitable, by_row) {}
  // Where by_row says so, a block is a row of its tensor instead, however long.
  Blocks(Tensors tensors, std::int64_t block, const unsigned char* by_row = nullptr)
      : tensors_(tensors), first_(tensors.count + 1), block_(tensors.count), total_(elements_of(tensors)) {
    if (block == kSuitable) block = suitable_block(total_);
    first_[0] = 0;
    for (std::int64_t t = 0; t < tensors.count; ++t) {
      const View& v = tensors[t];
      block_[t] = by_row != nullptr && by_row[t] && v.size > 0 ? v.size / v.rows : block;
      first_[t + 1] = first_[t] + quotient_up(v.size, block_[t]);
    }
  }
  std::int64_t count() { return first_[tensors_.count]; }
  std::int64_t first(std::int64_t tensor) { return first_[tensor]; }

  // fn(Block) for each block, over `threads`; `weight` is the number of elements touched for each element of a tensor.
  template <class Fn> void run(int threads, Fn&& fn, std::int64_t weight = 1) {
    on_threads(threads, weight * total_, count(), [&](std::int64_t begin, std::int64_t end) {
      std::int64_t t = 0;
      for (std::int64_t lo = 0, hi = tensors_.count; lo < hi;) {  // the last tensor that starts at or before `begin`
        const std::int64_t mid = (lo + hi) / 2;
        if (first_[mid + 1] <= begin)
          lo = mid + 1;
        else
          hi = mid;
        t = lo;
      }
      for (std::int64_t b = begin; b < end; ++b) {
        while (first_[t + 1] <= b) ++t;
        const std::int64_t start = (b - first_[t]) * block_[t];
        const std::int64_t left = tensors_[t].size - start;
        fn(Block{b, t, start, left < block_[t] ? left : block_[t]});
      }
    });
  }

 private:
  static constexpr std::int64_t kSuitable = 0;
  static std::int64_t elements_of(Tensors tensors) {
    std::int64_t total = 0;
    for (std::int64_t t = 0; t < tensors.count; ++t) total += tensors[t].size;
    return total;
  }
  Tensors tensors_;
  Scratch<std::int64_t> first_;
  Scratch<std::int64_t> block_;
  std::int64_t total_;
};

// step(t, threads) for each tensor: those of up to `alone` elements by a thread each, side by side; then one after the
// other those that all threads share. `weight` is the number of elements touched for each element of a tensor.
template <class Step>
void each_tensor(int threads, Tensors tensors, std::int64_t alone, std::int64_t weight, Step step) {
  Scratch<std::int64_t> small(tensors.count);
  std::int64_t count = 0, elements = 0;
  for (std::int64_t t = 0; t < tensors.count; ++t) {
    if (tensors[t].size > alone) continue;
    small[count++] = t;
    elements += tensors[t].size;
  }
  on_threads(threads, weight * elements, count, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t k = begin; k < end; ++k) step(small[k], 1);
  });
  for (std::int64_t t = 0; t < tensors.count; ++t) {
    if (tensors[t].size > alone) step(t, threads);
  }
}

}  // namespace boost_ext::cpu::BOOST_EXT_ISA
