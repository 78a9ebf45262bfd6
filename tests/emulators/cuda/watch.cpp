#include "watch.h"

#include <cstring>

#include "block.h"

namespace boost_ext::cuda::emulator {

void Sectors::count(const void* begin, std::size_t bytes) {
  *this = Sectors();
  begin_ = reinterpret_cast<std::uintptr_t>(begin);
  end_ = begin_ + bytes;
  clock_now.counts_sectors = bytes > 0;
}

void Sectors::note(const void* code, const void* p, std::size_t bytes, bool writes) {
  constexpr std::uintptr_t kSector = 32, kLanes = 32;
  const auto at = reinterpret_cast<std::uintptr_t>(p);
  if (at < begin_ || at >= end_) return;
  if (block_ != clock_now.block) finish();
  block_ = clock_now.block;
  const std::uintptr_t place = place_of(code);
  const Access access{static_cast<unsigned>(clock_now.thread / kLanes), place, times_[{clock_now.thread, place}]++,
                      writes};
  for (std::uintptr_t s = at / kSector; s <= (at + bytes - 1) / kSector; ++s) touched_[access].insert(s);
}

// As a number that no other place and calls have, but by chance.
std::uintptr_t Sectors::place_of(const void* code) {
  const std::vector<std::uintptr_t>& calls = calls_[clock_now.thread];
  return (calls.empty() ? 0 : calls.back()) * 0x9e3779b97f4a7c15 + reinterpret_cast<std::uintptr_t>(code);
}

void Sectors::enter(const void* caller) { calls_[clock_now.thread].push_back(place_of(caller)); }

void Sectors::leave() { calls_[clock_now.thread].pop_back(); }

void Sectors::finish() {
  for (const auto& [access, of_warp] : touched_)
    counts_[access.writes ? 1 : 0] += static_cast<std::int64_t>(of_warp.size());
  touched_.clear();
  times_.clear();
}

void access(void* to, const void* from, std::size_t bytes, bool writes) {
  if (clock_now.counts_sectors) sectors.note(__builtin_return_address(0), writes ? to : from, bytes, writes);
  std::memcpy(to, from, bytes);
}

}  // namespace boost_ext::cuda::emulator

// For tests in Python: of the launches between the two calls, reads and writes.
extern "C" __attribute__((visibility("default"))) void boost_ext_cuda_count_sectors(const void* begin,
                                                                                    std::int64_t bytes) {
  boost_ext::cuda::emulator::sectors.count(begin, static_cast<std::size_t>(bytes));
}
extern "C" __attribute__((visibility("default"))) void boost_ext_cuda_sectors(std::int64_t* reads,
                                                                              std::int64_t* writes) {
  auto& sectors = boost_ext::cuda::emulator::sectors;
  sectors.finish();
  *reads = sectors.reads();
  *writes = sectors.writes();
  sectors.count(nullptr, 0);
}

#if defined(__SANITIZE_THREAD__)

void boost_ext::cuda::emulator::watch_shared_memory() {}

#else

#include <link.h>

#include <cstddef>
#include <vector>

namespace boost_ext::cuda::emulator {

namespace {

constexpr unsigned kWarp = 32;

// Who last wrote a byte, and who has read it in which epoch.
struct Byte {
  std::uint32_t written = 0, write_time = 0, read = 0, read_time = 0, others_time = 0;
  std::uint16_t writer = 0, reader = 0;
  bool several_lanes = false, several_warps = false;  // have read it
};

std::vector<Byte> watched;

thread_local char in_shared_memory = 0;

// The thread-local memory of this module, in which __shared__ variables lie.
struct Range {
  std::uintptr_t begin = 0;
  std::size_t bytes = 0;
  Range() {
    dl_iterate_phdr(
        [](dl_phdr_info* info, std::size_t /*size*/, void* self) {
          const auto mine = reinterpret_cast<std::uintptr_t>(&in_shared_memory);
          for (int i = 0; i < info->dlpi_phnum; ++i) {
            const auto data = reinterpret_cast<std::uintptr_t>(info->dlpi_tls_data);
            const std::size_t bytes = info->dlpi_phdr[i].p_memsz;
            if (info->dlpi_phdr[i].p_type != PT_TLS || mine < data || mine >= data + bytes) continue;
            static_cast<Range*>(self)->begin = data;
            static_cast<Range*>(self)->bytes = bytes;
            return 1;
          }
          return 0;
        },
        this);
  }
};

bool ordered(const Clock& now, unsigned other, std::uint32_t time) {
  return other == now.thread || (other / kWarp == now.thread / kWarp && time < now.warp_since);
}

void race(const char* what, unsigned other, const char* did) {
  give_up(std::string("shared memory: a thread ") + what + " what thread number " + std::to_string(other) +
          " of its block " + did + ", without a barrier between");
}

void read(const Clock& now, Byte& b) {
  if (b.written == now.epoch && !ordered(now, b.writer, b.write_time)) race("reads", b.writer, "writes");
  if (b.read != now.epoch) b.several_lanes = b.several_warps = false;
  if (b.read == now.epoch && b.reader != now.thread) {
    b.others_time = b.read_time;
    (b.reader / kWarp == now.thread / kWarp ? b.several_lanes : b.several_warps) = true;
  }
  b.read = now.epoch;
  b.reader = static_cast<std::uint16_t>(now.thread);
  b.read_time = now.warp_time;
}

void write(const Clock& now, Byte& b) {
  if (b.written == now.epoch && !ordered(now, b.writer, b.write_time)) race("writes", b.writer, "writes");
  if (b.read == now.epoch) {
    const bool same_warp = b.reader / kWarp == now.thread / kWarp;
    const bool another_lane =
        b.reader != now.thread ? b.read_time >= now.warp_since : b.several_lanes && b.others_time >= now.warp_since;
    if (b.several_warps || !same_warp || another_lane) race("writes", b.reader, "(or another one) reads");
  }
  b.written = now.epoch;
  b.writer = static_cast<std::uint16_t>(now.thread);
  b.write_time = now.warp_time;
}

void touch_shared(const Clock& now, std::uintptr_t address, std::size_t bytes, bool writes) {
  const std::uintptr_t at = address - now.shared;
  if (bytes > watched.size() - at) return;
  Byte* b = &watched[at];
  for (std::size_t i = 0; i < bytes; ++i) {
    if (!writes && b[i].written < now.block)
      give_up("shared memory: a thread reads what none of its block has written");
    writes ? write(now, b[i]) : read(now, b[i]);
  }
}

inline void touch(const void* p, std::size_t bytes, bool writes, const void* code) {
  const Clock& now = clock_now;
  if (!now.inside) return;
  if (now.counts_sectors) sectors.note(code, p, bytes, writes);
  const auto address = reinterpret_cast<std::uintptr_t>(p);
  if (address - now.shared < now.shared_bytes) touch_shared(now, address, bytes, writes);
}

}  // namespace

void watch_shared_memory() {
  static thread_local const Range range;
  clock_now.shared = range.begin;
  clock_now.shared_bytes = range.bytes;
  if (watched.size() < range.bytes) watched.resize(range.bytes);
}

}  // namespace boost_ext::cuda::emulator

using boost_ext::cuda::emulator::clock_now;
using boost_ext::cuda::emulator::sectors;
using boost_ext::cuda::emulator::touch;

// The thread sanitizer's entries, by their names in the compilers.
#define BOOST_EXT_WATCH(bytes)                                                                        \
  void __tsan_read##bytes(void* p) { touch(p, bytes, false, __builtin_return_address(0)); }           \
  void __tsan_write##bytes(void* p) { touch(p, bytes, true, __builtin_return_address(0)); }           \
  void __tsan_unaligned_read##bytes(void* p) { touch(p, bytes, false, __builtin_return_address(0)); } \
  void __tsan_unaligned_write##bytes(void* p) { touch(p, bytes, true, __builtin_return_address(0)); } \
  void __tsan_volatile_read##bytes(void* p) { touch(p, bytes, false, __builtin_return_address(0)); }  \
  void __tsan_volatile_write##bytes(void* p) { touch(p, bytes, true, __builtin_return_address(0)); }
// Atomic functions, as they are: not watched.
#define BOOST_EXT_PASS_ON(bits, T)                                                                                  \
  T __tsan_atomic##bits##_load(const volatile T* p, int) { return __atomic_load_n(p, __ATOMIC_SEQ_CST); }           \
  void __tsan_atomic##bits##_store(volatile T* p, T v, int) { __atomic_store_n(p, v, __ATOMIC_SEQ_CST); }           \
  T __tsan_atomic##bits##_exchange(volatile T* p, T v, int) { return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST); } \
  T __tsan_atomic##bits##_fetch_add(volatile T* p, T v, int) { return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST); } \
  T __tsan_atomic##bits##_fetch_sub(volatile T* p, T v, int) { return __atomic_fetch_sub(p, v, __ATOMIC_SEQ_CST); } \
  T __tsan_atomic##bits##_fetch_and(volatile T* p, T v, int) { return __atomic_fetch_and(p, v, __ATOMIC_SEQ_CST); } \
  T __tsan_atomic##bits##_fetch_or(volatile T* p, T v, int) { return __atomic_fetch_or(p, v, __ATOMIC_SEQ_CST); }   \
  T __tsan_atomic##bits##_fetch_xor(volatile T* p, T v, int) { return __atomic_fetch_xor(p, v, __ATOMIC_SEQ_CST); } \
  bool __tsan_atomic##bits##_compare_exchange_strong(volatile T* p, T* e, T v, int, int) {                          \
    return __atomic_compare_exchange_n(p, e, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                         \
  }                                                                                                                 \
  bool __tsan_atomic##bits##_compare_exchange_weak(volatile T* p, T* e, T v, int, int) {                            \
    return __atomic_compare_exchange_n(p, e, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                         \
  }

extern "C" {
BOOST_EXT_WATCH(1)
BOOST_EXT_WATCH(2)
BOOST_EXT_WATCH(4)
BOOST_EXT_WATCH(8)
BOOST_EXT_WATCH(16)
BOOST_EXT_PASS_ON(8, std::uint8_t)
BOOST_EXT_PASS_ON(16, std::uint16_t)
BOOST_EXT_PASS_ON(32, std::uint32_t)
BOOST_EXT_PASS_ON(64, std::uint64_t)
void __tsan_read_range(void* p, std::size_t bytes) { touch(p, bytes, false, __builtin_return_address(0)); }
void __tsan_write_range(void* p, std::size_t bytes) { touch(p, bytes, true, __builtin_return_address(0)); }
void __tsan_vptr_update(void** /*p*/, void* /*value*/) {}
void __tsan_vptr_read(void** /*p*/) {}
void __tsan_func_entry(void* caller) {
  if (clock_now.inside && clock_now.counts_sectors) sectors.enter(caller);
}
void __tsan_func_exit(void) {
  if (clock_now.inside && clock_now.counts_sectors) sectors.leave();
}
void __tsan_init(void) {}
void __tsan_atomic_thread_fence(int /*order*/) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
void __tsan_atomic_signal_fence(int /*order*/) {}
}

#endif
