// Copies between global memory and UB, and the meeting of all cores.
#pragma once

#include "tensors.h"

namespace emulator {

template <class T> void add_to(T& target, const T& value) { target = static_cast<T>(target + value); }

// Writes or, in atomic mode, adds.
template <class T> void store_global(std::uint8_t* target, const std::uint8_t* source, std::int64_t bytes) {
  if (!core().atomic) {
    std::memcpy(target, source, static_cast<std::size_t>(bytes));
    return;
  }
  if constexpr (std::is_same_v<T, bfloat16_t>) {
    fail("DataCopy: atomic addition of bfloat16");
  } else {
    for (std::int64_t i = 0; i < bytes; i += static_cast<std::int64_t>(sizeof(T))) {
      T a, b;
      std::memcpy(&a, target + i, sizeof a);
      std::memcpy(&b, source + i, sizeof b);
      add_to(a, b);
      std::memcpy(target + i, &a, sizeof a);
    }
  }
}

inline std::int64_t round_up(std::int64_t bytes) { return (bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes; }

inline void check_blocks(const AscendC::DataCopyParams& p) {
  expect(p.blockCount >= 1 && p.blockCount <= 4095, "DataCopy: blockCount from 1 to 4095, got ", p.blockCount);
  expect(p.blockLen >= 1, "DataCopy: blockLen from 1, got 0");
}

// fn(to, from) for each block of a copy, in bytes.
template <class Fn> void each_block(const AscendC::DataCopyParams& p, Fn fn) {
  for (std::int64_t b = 0; b < p.blockCount; ++b) {
    fn(b * (p.blockLen + p.dstGap) * kBlockBytes, b * (p.blockLen + p.srcGap) * kBlockBytes);
  }
}

}  // namespace emulator

namespace AscendC {

// Lengths and gaps in blocks of 32 bytes, gaps from the end of a block to the start of the next one.
template <class T> void DataCopy(const LocalTensor<T>& dst, const GlobalTensor<T>& src, const DataCopyParams& p) {
  emulator::check_blocks(p);
  dst.aligned("DataCopy");
  const std::int64_t bytes = p.blockLen * emulator::kBlockBytes;
  const auto size = static_cast<std::int64_t>(sizeof(T));
  emulator::Instruction it("DataCopy", PIPE_MTE2);
  emulator::each_block(p, [&](std::int64_t to, std::int64_t from) {
    it.writes(dst.at("DataCopy", to / size, bytes / size), bytes);
    it.reads_global(src.at("DataCopy", from, bytes), bytes);
  });
  it.go();
  emulator::each_block(p, [&](std::int64_t to, std::int64_t from) {
    std::memcpy(dst.data("DataCopy") + to, src.at("DataCopy", from, bytes), static_cast<std::size_t>(bytes));
  });
}

template <class T> void DataCopy(const GlobalTensor<T>& dst, const LocalTensor<T>& src, const DataCopyParams& p) {
  emulator::check_blocks(p);
  src.aligned("DataCopy");
  const std::int64_t bytes = p.blockLen * emulator::kBlockBytes;
  const auto size = static_cast<std::int64_t>(sizeof(T));
  emulator::Instruction it("DataCopy", PIPE_MTE3);
  emulator::each_block(p, [&](std::int64_t to, std::int64_t from) {
    it.reads(src.at("DataCopy", from / size, bytes / size), bytes);
    it.writes_global(dst.at("DataCopy", to, bytes), bytes);
  });
  it.go();
  emulator::each_block(p, [&](std::int64_t to, std::int64_t from) {
    emulator::store_global<T>(dst.at("DataCopy", to, bytes), src.data("DataCopy") + from, bytes);
  });
}

// The hardware rounds a length down to whole blocks, silently; here that is an error.
template <class T> DataCopyParams whole_blocks(std::uint32_t count) {
  const std::int64_t bytes = static_cast<std::int64_t>(count) * static_cast<std::int64_t>(sizeof(T));
  emulator::expect(bytes > 0 && bytes % emulator::kBlockBytes == 0, "DataCopy: a multiple of 32 bytes, got ", bytes);
  emulator::expect(bytes / emulator::kBlockBytes <= 65535, "DataCopy: at most 65535 blocks, got ",
                   bytes / emulator::kBlockBytes);
  return {1, static_cast<std::uint16_t>(bytes / emulator::kBlockBytes), 0, 0};
}
template <class T> void DataCopy(const LocalTensor<T>& dst, const GlobalTensor<T>& src, std::uint32_t count) {
  DataCopy(dst, src, whole_blocks<T>(count));
}
template <class T> void DataCopy(const GlobalTensor<T>& dst, const LocalTensor<T>& src, std::uint32_t count) {
  DataCopy(dst, src, whole_blocks<T>(count));
}
// Within UB: an instruction of the vector pipe.
template <class T> void DataCopy(const LocalTensor<T>& dst, const LocalTensor<T>& src, std::uint32_t count) {
  whole_blocks<T>(count);
  dst.aligned("DataCopy");
  src.aligned("DataCopy");
  const std::int64_t bytes = static_cast<std::int64_t>(count) * static_cast<std::int64_t>(sizeof(T));
  emulator::Instruction it("DataCopy", PIPE_V);
  it.reads(src.at("DataCopy", 0, count), bytes);
  it.writes(dst.at("DataCopy", 0, count), bytes);
  it.go();
  std::memmove(dst.data("DataCopy"), src.data("DataCopy"), static_cast<std::size_t>(bytes));
}

inline void check_pad(const DataCopyExtParams& p, std::size_t size) {
  emulator::expect(p.blockCount >= 1 && p.blockCount <= 4095, "DataCopyPad: blockCount from 1 to 4095, got ",
                   p.blockCount);
  emulator::expect(p.blockLen >= 1 && p.blockLen <= 2097151, "DataCopyPad: blockLen from 1 to 2097151, got ",
                   p.blockLen);
  emulator::expect(p.blockLen % size == 0, "DataCopyPad: blockLen is in bytes, a multiple of ", size, ", got ",
                   p.blockLen);
}

// Each block starts at a block of UB; srcStride in bytes, dstStride in blocks of 32 bytes.
template <class T>
void DataCopyPad(const LocalTensor<T>& dst, const GlobalTensor<T>& src, const DataCopyExtParams& p,
                 const DataCopyPadExtParams<T>& pad) {
  const char* op = "DataCopyPad";
  const auto size = static_cast<std::int64_t>(sizeof(T));
  check_pad(p, sizeof(T));
  dst.aligned(op);
  emulator::expect(pad.leftPadding * size <= emulator::kBlockBytes && pad.rightPadding * size <= emulator::kBlockBytes,
                   op, ": at most 32 bytes of padding a side");
  const std::int64_t left = pad.leftPadding * size;
  const std::int64_t filled = left + p.blockLen + pad.rightPadding * size;
  const std::int64_t whole = emulator::round_up(filled);
  const auto to = [&](std::int64_t b) { return b * (whole + p.dstStride * emulator::kBlockBytes); };
  const auto from = [&](std::int64_t b) { return b * (static_cast<std::int64_t>(p.blockLen) + p.srcStride); };
  emulator::Instruction it(op, PIPE_MTE2);
  for (std::int64_t b = 0; b < p.blockCount; ++b) {
    it.writes(dst.at(op, to(b) / size, whole / size), whole);
    it.reads_global(src.at(op, from(b), p.blockLen), p.blockLen);
  }
  it.go();
  for (std::int64_t b = 0; b < p.blockCount; ++b) {
    std::uint8_t* target = dst.data(op) + to(b);
    std::memcpy(target + left, src.at(op, from(b), p.blockLen), p.blockLen);
    const std::int64_t after = left + p.blockLen;
    // What is not asked for is undefined.
    if (!pad.isPad) {
      emulator::core().poison(dst.offset() + to(b), left);
      emulator::core().poison(dst.offset() + to(b) + after, whole - after);
      continue;
    }
    for (std::int64_t i = 0; i < left; i += size) std::memcpy(target + i, &pad.paddingValue, sizeof(T));
    for (std::int64_t i = after; i < filled; i += size) std::memcpy(target + i, &pad.paddingValue, sizeof(T));
    emulator::core().poison(dst.offset() + to(b) + filled, whole - filled);
  }
}

// srcStride in blocks of 32 bytes, dstStride in bytes.
template <class T> void DataCopyPad(const GlobalTensor<T>& dst, const LocalTensor<T>& src, const DataCopyExtParams& p) {
  const char* op = "DataCopyPad";
  const auto size = static_cast<std::int64_t>(sizeof(T));
  check_pad(p, sizeof(T));
  src.aligned(op);
  const std::int64_t whole = emulator::round_up(p.blockLen);
  const auto from = [&](std::int64_t b) { return b * (whole + p.srcStride * emulator::kBlockBytes); };
  const auto to = [&](std::int64_t b) { return b * (static_cast<std::int64_t>(p.blockLen) + p.dstStride); };
  emulator::Instruction it(op, PIPE_MTE3);
  for (std::int64_t b = 0; b < p.blockCount; ++b) {
    it.reads(src.at(op, from(b) / size, p.blockLen / size), p.blockLen);
    it.writes_global(dst.at(op, to(b), p.blockLen), p.blockLen);
  }
  it.go();
  for (std::int64_t b = 0; b < p.blockCount; ++b) {
    emulator::store_global<T>(dst.at(op, to(b), p.blockLen), src.data(op) + from(b), p.blockLen);
  }
}

inline void expect_idle(const emulator::Core& core) {
  for (std::size_t p = 0; p < emulator::kPipes; ++p) {
    emulator::expect(core.known[PIPE_S][p] >= core.issued[p], "SyncAll: without PipeBarrier<PIPE_ALL> before it");
  }
}

// All cores meet, once every pipe is empty: nothing says that SyncAll waits for that itself. The workspaces hold 32
// bytes a core; the one in global memory was zeroed before the launch.
inline void SyncAll(const GlobalTensor<std::int32_t>& global, const LocalTensor<std::int32_t>& local,
                    std::int32_t used = 0) {
  emulator::Core& core = emulator::core();
  expect_idle(core);
  emulator::expect(core.blocks <= emulator::settings.cores, "SyncAll: ", core.blocks, " blocks on ",
                   emulator::settings.cores, " cores, of which some start when others end");
  const int cores = used == 0 ? core.blocks : used;
  emulator::expect(cores == core.blocks, "SyncAll: for some of the cores is not emulated");
  const std::int64_t bytes = cores * emulator::kBlockBytes;
  local.at("SyncAll", 0, bytes / 4);
  local.aligned("SyncAll");
  emulator::region_of("SyncAll", global.at("SyncAll", 0, bytes), bytes);
  std::int32_t* mine = global.GetPhyAddr(static_cast<std::uint64_t>(core.block) * 8);
  emulator::expect(*mine == core.syncs, "SyncAll: the workspace in global memory was not zeroed before the launch");
  *mine = ++core.syncs;
  core.barrier_all();
  emulator::Launch::running->wait();
}

}  // namespace AscendC
