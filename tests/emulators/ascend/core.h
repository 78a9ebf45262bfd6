// One core of the emulator: its buffers, what is written in them, and who knows what of whom.
//
// Instructions take effect at once, in program order. What a real core does at the same time is followed by clocks:
// each pipe numbers its instructions and knows, for every pipe, up to which number it has waited. An instruction that
// touches 32 bytes which another one wrote (or that writes what another one touched) must know of that one.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "types.h"

namespace emulator {

constexpr int kPipes = 4;
constexpr const char* kPipeNames[] = {"S", "V", "MTE2", "MTE3"};
constexpr std::int64_t kUbBytes = 196608;
// CANN keeps the last 8 KiB and 256 bytes: Select writes an address or a scalar there, at 184 KiB.
constexpr std::int64_t kUsableBytes = kUbBytes - 8192 - 256;
constexpr std::int64_t kBlockBytes = 32;
constexpr std::int64_t kRepeatBytes = 256;
constexpr int kMaxBuffers = 64;
constexpr int kMaxTensors = 8;
constexpr int kEvents = 8;

struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};
template <class... Parts> [[noreturn]] void fail(const Parts&... parts) {
  std::ostringstream s;
  (s << ... << parts);
  throw Error(s.str());
}
template <class... Parts> void expect(bool ok, const Parts&... parts) {
  if (!ok) fail(parts...);
}

using Clock = std::array<std::uint32_t, kPipes>;

// strict: nothing is inserted by the compiler. Without it, instructions of one pipe wait for one another by themselves.
struct Settings {
  bool strict = true;
  std::uint32_t seed = 1;
  std::int32_t cores = 4;  // of the device
  // For tests of the kernels' own barriers: these are passed over.
  std::string without_barrier;  // "file:line" of a PipeBarrier, without folders
  int without_wait = -1;        // the how-manieth WaitFlag of a core
};
inline Settings settings;
inline std::set<std::string> barriers_seen;  // where the kernels have them
inline int waits_seen = 0;                   // the most of a core

// Who last touched 32 bytes.
struct Cell {
  std::uint32_t written = 0;
  std::uint8_t writer = 0;
  Clock read{};
};

// The same in global memory, where other cores are ordered by epochs: launches, and what lies between two SyncAll.
struct GlobalCell : Cell {
  std::uint32_t write_epoch = 0, read_epoch = 0;
  int write_core = -1, read_core = -1;
  bool atomic = false, many_readers = false;
};

// Global memory that a kernel may touch; everything else is out of bounds.
class Region {
 public:
  Region(void* data, std::int64_t bytes);
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  std::uint8_t* begin;
  std::int64_t bytes;
  std::vector<GlobalCell> cells;
};
inline std::vector<Region*> regions;
inline std::uint32_t epoch = 1;

inline Region::Region(void* data, std::int64_t size)
    : begin(static_cast<std::uint8_t*>(data)),
      bytes(size),
      cells(static_cast<std::size_t>((size + kBlockBytes - 1) / kBlockBytes)) {
  regions.push_back(this);
}
inline Region::~Region() {
  for (std::size_t i = 0; i < regions.size(); ++i) {
    if (regions[i] != this) continue;
    regions.erase(regions.begin() + static_cast<std::ptrdiff_t>(i));
    return;
  }
}

inline Region& region_of(const char* op, const std::uint8_t* p, std::int64_t size) {
  for (Region* r : regions) {
    if (p >= r->begin && p + size <= r->begin + r->bytes) return *r;
  }
  fail(op, ": global memory out of bounds, ", size, " bytes");
}

struct Buffer {
  std::int64_t offset = 0;
  std::int64_t bytes = 0;
  int queue = -1;  // -1: a TBuf
  std::uint32_t generation = 0;
  enum { kFree, kAllocated, kEnqueued, kDequeued } state = kFree;
  Clock ready{};     // what EnQue hands to DeQue
  Clock released{};  // what FreeTensor hands to AllocTensor
};

struct Queue {
  AscendC::TPosition position;
  int depth;
  std::vector<int> buffers;
  std::vector<int> waiting;  // enqueued, oldest first
  std::size_t next = 0;      // buffers are taken in turn
};

class Core {
 public:
  Core(int block_index, int block_count)
      : block(block_index),
        blocks(block_count),
        ub(new std::uint8_t[kUbBytes]),
        written(static_cast<std::size_t>(kUbBytes), 0),
        cells(static_cast<std::size_t>(kUbBytes / kBlockBytes)) {
    std::memset(ub.get(), 0xff, kUbBytes);
  }

  int block, blocks;
  std::unique_ptr<std::uint8_t[]> ub;
  std::vector<std::uint8_t> written;  // 0: nobody has written this byte since it was allocated
  std::vector<Cell> cells;
  std::vector<Buffer> buffers;
  std::vector<Queue> queues;
  std::int64_t ub_used = 0;
  Clock issued{};
  std::array<Clock, kPipes> known{};
  struct Flag {
    bool set = false;
    Clock clock{};
  };
  std::array<std::array<Flag, kEvents>, 12> flags{};
  std::array<unsigned, 12> event_ids{};  // taken by AllocEventID
  bool has_pipe = false;
  bool atomic = false;
  bool mask_changed = false;
  bool mask_counts = false;
  int dirty_lines = 0;  // scalar stores to global memory that are still in the cache
  int syncs = 0;
  int waits = 0;

  bool ordered(int pipe, int other, std::uint32_t number) const {
    if (number == 0 || (pipe == other && (pipe == PIPE_S || !settings.strict))) return true;
    return known[static_cast<std::size_t>(pipe)][static_cast<std::size_t>(other)] >= number;
  }
  Clock snapshot(int pipe) const {
    Clock c = known[static_cast<std::size_t>(pipe)];
    c[static_cast<std::size_t>(pipe)] = issued[static_cast<std::size_t>(pipe)];
    return c;
  }
  void join(int pipe, const Clock& c) {
    Clock& mine = known[static_cast<std::size_t>(pipe)];
    for (std::size_t i = 0; i < kPipes; ++i) mine[i] = std::max(mine[i], c[i]);
  }
  void barrier_all() {
    for (Clock& c : known) c = issued;
  }

  void poison(std::int64_t offset, std::int64_t bytes) {
    std::memset(ub.get() + offset, 0xff, static_cast<std::size_t>(bytes));
    std::memset(written.data() + offset, 0, static_cast<std::size_t>(bytes));
  }
  int add_buffer(std::int64_t bytes, int queue) {
    expect(bytes > 0, "InitBuffer: a length of ", bytes);
    expect(static_cast<int>(buffers.size()) < kMaxBuffers, "InitBuffer: more than ", kMaxBuffers, " buffers");
    Buffer b;
    b.offset = ub_used;
    b.bytes = (bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
    b.queue = queue;
    ub_used += b.bytes;
    expect(ub_used <= kUsableBytes, "InitBuffer: UB overflow, ", ub_used, " of ", kUsableBytes, " bytes");
    buffers.push_back(b);
    return static_cast<int>(buffers.size()) - 1;
  }

  void finish() const {
    for (std::size_t e = 0; e < flags.size(); ++e) {
      for (int id = 0; id < kEvents; ++id) {
        expect(!flags[e][static_cast<std::size_t>(id)].set, "end of kernel: flag ", id, " of event ", e,
               " was set and never waited for");
      }
    }
    for (std::size_t e = 0; e < event_ids.size(); ++e) {
      expect(event_ids[e] == 0, "end of kernel: an id of event ", e, " was not released");
    }
    for (const Buffer& b : buffers) {
      expect(b.queue < 0 || b.state == Buffer::kFree, "end of kernel: a tensor of queue ", b.queue, " was not freed");
    }
    expect(!atomic, "end of kernel: atomic mode was not reset");
    expect(!mask_counts && !mask_changed, "end of kernel: the mask was not reset");
    expect(dirty_lines == 0, "end of kernel: scalar stores to global memory were not written back from the cache");
  }
};

inline thread_local Core* current = nullptr;
inline Core& core() {
  expect(current != nullptr, "called outside of a kernel");
  return *current;
}

// What one instruction touches. First all of it is named, then go() checks it and leaves the traces.
class Instruction {
 public:
  Instruction(const char* op, int pipe) : op_(op), pipe_(pipe), core_(core()) {}

  void reads(std::int64_t offset, std::int64_t bytes) {
    for (std::int64_t i = offset; i < offset + bytes; ++i) {
      expect(core_.written[static_cast<std::size_t>(i)] != 0, op_, ": reads memory that nothing has written");
    }
    reads_.push_back({offset, bytes});
  }
  void writes(std::int64_t offset, std::int64_t bytes) { writes_.push_back({offset, bytes}); }

  void reads_global(const std::uint8_t* p, std::int64_t bytes) {
    if (bytes > 0) global_reads_.push_back({&region_of(op_, p, bytes), p, bytes});
  }
  void writes_global(const std::uint8_t* p, std::int64_t bytes) {
    if (bytes > 0) global_writes_.push_back({&region_of(op_, p, bytes), p, bytes});
  }

  void go() {
    const std::uint32_t number = core_.issued[static_cast<std::size_t>(pipe_)] + 1;
    for (const Span& s : reads_) each(s, [&](Cell& c) { check_written(c); });
    for (const Span& s : writes_) each(s, [&](Cell& c) { check_written(c), check_read(c); });
    for (const Global& g : global_reads_) each(g, [&](GlobalCell& c) { check_global(c, false); });
    for (const Global& g : global_writes_) each(g, [&](GlobalCell& c) { check_global(c, true); });
    core_.issued[static_cast<std::size_t>(pipe_)] = number;
    for (const Span& s : reads_) each(s, [&](Cell& c) { c.read[static_cast<std::size_t>(pipe_)] = number; });
    for (const Span& s : writes_) {
      each(s, [&](Cell& c) {
        c.written = number;
        c.writer = static_cast<std::uint8_t>(pipe_);
      });
      std::memset(core_.written.data() + s.offset, 1, static_cast<std::size_t>(s.bytes));
    }
    for (const Global& g : global_reads_) each(g, [&](GlobalCell& c) { mark_read(c, number); });
    for (const Global& g : global_writes_) each(g, [&](GlobalCell& c) { mark_written(c, number); });
  }

 private:
  struct Span {
    std::int64_t offset, bytes;
  };
  struct Global {
    Region* region;
    const std::uint8_t* p;
    std::int64_t bytes;
  };
  template <class F> void each(const Span& s, F f) {
    if (s.bytes == 0) return;
    for (std::int64_t b = s.offset / kBlockBytes; b <= (s.offset + s.bytes - 1) / kBlockBytes; ++b) {
      f(core_.cells[static_cast<std::size_t>(b)]);
    }
  }
  template <class F> void each(const Global& g, F f) {
    const std::int64_t at = g.p - g.region->begin;
    for (std::int64_t b = at / kBlockBytes; b <= (at + g.bytes - 1) / kBlockBytes; ++b) {
      f(g.region->cells[static_cast<std::size_t>(b)]);
    }
  }
  void check_written(const Cell& c) const {
    expect(core_.ordered(pipe_, c.writer, c.written), op_, ": pipe ", kPipeNames[pipe_],
           " has not waited for the write of pipe ", kPipeNames[c.writer]);
  }
  void check_read(const Cell& c) const {
    for (int p = 0; p < kPipes; ++p) {
      expect(core_.ordered(pipe_, p, c.read[static_cast<std::size_t>(p)]), op_, ": pipe ", kPipeNames[pipe_],
             " has not waited for the read of pipe ", kPipeNames[p]);
    }
  }
  void check_global(const GlobalCell& c, bool write) const {
    if (c.write_epoch == epoch && !(write && core_.atomic && c.atomic)) {
      expect(c.write_core == core_.block, op_, ": global memory that core ", c.write_core,
             " writes, without SyncAll between");
      check_written(c);
    }
    if (!write || c.read_epoch != epoch) return;
    expect(!c.many_readers && c.read_core == core_.block, op_,
           ": global memory that another core reads, without SyncAll between");
    check_read(c);
  }
  void mark_read(GlobalCell& c, std::uint32_t number) const {
    if (c.read_epoch != epoch) {
      c.read = Clock{};
      c.many_readers = false;
      c.read_core = core_.block;
    }
    c.many_readers = c.many_readers || c.read_core != core_.block;
    c.read_epoch = epoch;
    c.read[static_cast<std::size_t>(pipe_)] = number;
  }
  void mark_written(GlobalCell& c, std::uint32_t number) const {
    c.written = number;
    c.writer = static_cast<std::uint8_t>(pipe_);
    c.write_epoch = epoch;
    c.write_core = core_.block;
    c.atomic = core_.atomic;
  }

  const char* op_;
  int pipe_;
  Core& core_;
  std::vector<Span> reads_, writes_;
  std::vector<Global> global_reads_, global_writes_;
};

}  // namespace emulator
