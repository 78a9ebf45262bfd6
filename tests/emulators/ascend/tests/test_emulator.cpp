// Kernels that are wrong on purpose: what the emulator must find in the sizes, the memory and the queues of one core.
#include "wrong.h"

namespace native {
namespace {

void test_copies() {
  CHECK_RIGHT(auto t = k.in.AllocTensor<float>(); DataCopy(t, k.x, 8); k.in.EnQue(t); t = k.in.DeQue<float>();
              k.in.FreeTensor(t));
  CHECK_WRONG("DataCopy: a multiple of 32 bytes, got 28", DataCopy(k.a.Get<float>(), k.x, 7));
  CHECK_WRONG("DataCopy: a multiple of 32 bytes, got 0", DataCopy(k.a.Get<float>(), k.x, 0));
  CHECK_WRONG("DataCopy: a tensor in UB must be aligned to 32 bytes", DataCopy(k.a.Get<float>()[1], k.x, 8));
  CHECK_WRONG("DataCopy: a tensor in UB must be aligned to 32 bytes", DataCopy(k.y, k.ready()[4], 8));
  CHECK_WRONG("DataCopy: blockCount from 1 to 4095, got 4096",
              DataCopy(k.a.Get<float>(), k.x, DataCopyParams(4096, 1, 0, 0)));
  CHECK_WRONG("DataCopy: blockLen from 1, got 0", DataCopy(k.a.Get<float>(), k.x, DataCopyParams(1, 0, 0, 0)));
  CHECK_WRONG("DataCopy: at most 65535 blocks, got 65536", DataCopy(k.a.Get<float>(), k.x, 65536 * 8));
  CHECK_WRONG("DataCopy: atomic addition of bfloat16", auto t = k.ready(); GlobalTensor<bfloat16_t> g;
              g.SetGlobalBuffer(reinterpret_cast<bfloat16_t*>(k.y.GetPhyAddr(0))); SetAtomicAdd<float>();
              DataCopy(g, t.ReinterpretCast<bfloat16_t>(), 16));
  const DataCopyPadExtParams<float> none;
  CHECK_WRONG("DataCopyPad: blockLen from 1 to 2097151, got 2097152",
              DataCopyPad(k.a.Get<float>(), k.x, DataCopyExtParams(1, 2097152, 0, 0, 0), none));
  CHECK_WRONG("DataCopyPad: blockLen is in bytes, a multiple of 4, got 7",
              DataCopyPad(k.a.Get<float>(), k.x, DataCopyExtParams(1, 7, 0, 0, 0), none));
  CHECK_WRONG("DataCopyPad: blockCount from 1 to 4095, got 0",
              DataCopyPad(k.a.Get<float>(), k.x, DataCopyExtParams(0, 4, 0, 0, 0), none));
  CHECK_WRONG(
      "DataCopyPad: at most 32 bytes of padding a side",
      DataCopyPad(k.a.Get<float>(), k.x, DataCopyExtParams(1, 4, 0, 0, 0), DataCopyPadExtParams<float>(true, 0, 9, 0)));
  CHECK_WRONG("DataCopyPad: a tensor in UB must be aligned to 32 bytes",
              DataCopyPad(k.a.Get<float>()[2], k.x, DataCopyExtParams(1, 4, 0, 0, 0), none));
}

// Strides: in bytes on one side, in blocks on the other; gaps count from the end of a block.
void test_strides() {
  Bench bench;
  for (std::uint32_t i = 0; i < kWrongCount; ++i) bench.from[i] = static_cast<float>(i);
  emulator::launch(1, [&] {
    Kernel k(bench.from.data(), bench.to.data());
    LocalTensor<float> t = k.a.Get<float>();
    Duplicate(t, -1.0F, kWrongCount);
    PipeBarrier<PIPE_ALL>();
    // Three blocks of five elements, seven apart, each into 32 bytes with 64 bytes between.
    DataCopyPad(t, k.x, DataCopyExtParams(3, 20, 8, 2, 0), DataCopyPadExtParams<float>(true, 1, 2, -7));
    PipeBarrier<PIPE_ALL>();
    DataCopyPad(k.y, t, DataCopyExtParams(3, 32, 2, 4, 0));
  });
  for (int b = 0; b < 3; ++b) {
    const float* row = bench.to.data() + 9 * b;
    CHECK(row[0] == -7 && row[1] == 7.0F * b && row[5] == 7.0F * b + 4 && row[6] == -7 && row[7] == -7 && row[8] == 0);
  }
  emulator::launch(1, [&] {
    Kernel k(bench.from.data(), bench.to.data());
    LocalTensor<float> t = k.a.Get<float>();
    DataCopy(t, k.x, DataCopyParams(2, 1, 3, 0));
    PipeBarrier<PIPE_ALL>();
    DataCopy(k.y[64], t, DataCopyParams(2, 1, 0, 1));
  });
  CHECK(bench.to[64] == 0 && bench.to[71] == 7 && bench.to[72] == 0 && bench.to[80] == 32 && bench.to[87] == 39);
}

void test_counts() {
  CHECK_WRONG("Add: a tensor in UB must be aligned to 32 bytes", auto t = k.ready(); Add(t[8], t, t[4], 8));
  CHECK_WRONG("Add: a count from 1, got 0", auto t = k.ready(); Add(t, t, t, 0));
  CHECK_WRONG("Muls: elements 0 to 256 of a tensor of 256", auto t = k.ready(); Muls(t, t, 2.0F, 257));
  CHECK_WRONG("Add: a mask from 1 to 64, got 65", auto t = k.ready(); Add(t, t, t, std::uint64_t{65}, 1, {}));
  CHECK_WRONG("a vector operation: 1 to 255 repeats, got 0", auto t = k.ready();
              Add(t, t, t, std::uint64_t{64}, 0, {}));
  CHECK_WRONG("Add: elements 256 to 256 of a tensor of 256", auto t = k.ready();
              Add(t, t, t, std::uint64_t{64}, 5, BinaryRepeatParams(1, 1, 1, 8, 8, 8)));
  CHECK_WRONG("WholeReduceSum: 1 to 255 repeats, got 256", auto t = k.ready();
              WholeReduceSum(k.b.Get<float>(), t, 64, 256, 1, 1, 0));
  CHECK_WRONG("Compare: a multiple of 256 bytes, got 252", auto t = k.ready();
              Compare(k.b.Get<std::uint8_t>(), t, t, CMPMODE::EQ, 63));
  CHECK_WRONG("LocalTensor: offset 257 beyond 256 elements", k.a.Get<float>()[257]);
  CHECK_WRONG("Add: the destination overlaps a source without being it", auto t = k.ready(); Add(t[8], t, t[64], 64));
  CHECK_WRONG("Cast: the destination overlaps a source without being it", auto t = k.ready();
              Cast(t.ReinterpretCast<half>(), t, RoundMode::CAST_NONE, 64));
  CHECK_RIGHT(auto t = k.ready(); Add(t, t, t, 64));
  // An accumulator stands still as destination and second source; as first source it may not.
  CHECK_RIGHT(auto t = k.ready(); auto sum = k.b.Get<float>(); Duplicate(sum, 0.0F, 64); PipeBarrier<PIPE_V>();
              Add(sum, t, sum, std::uint64_t{64}, 4, BinaryRepeatParams(1, 1, 1, 0, 8, 0)));
  CHECK_WRONG("Add: the destination overlaps a source without being it", auto t = k.ready();
              auto sum = k.b.Get<float>(); Duplicate(sum, 0.0F, 64); PipeBarrier<PIPE_V>();
              Add(sum, sum, t, std::uint64_t{64}, 4, BinaryRepeatParams(1, 1, 1, 0, 0, 8)));
}

void test_memory() {
  CHECK_RIGHT(TBuf<> rest; k.pipe.InitBuffer(rest, 188160 - 6 * kWrongBytes));
  CHECK_WRONG("InitBuffer: UB overflow, 188192 of 188160 bytes", TBuf<> rest;
              k.pipe.InitBuffer(rest, 188160 - 6 * kWrongBytes + 1));
  CHECK_WRONG("InitBuffer: more than 64 buffers", TBuf<> more[59]; for (auto& m : more) k.pipe.InitBuffer(m, 32));
  CHECK_WRONG("InitBuffer: 9 tensors at one position, 8 at most", TQue<TPosition::VECIN, 1> more;
              k.pipe.InitBuffer(more, 7, 32));
  CHECK_WRONG("TPipe: a kernel has one", TPipe second);
  CHECK_WRONG("InitBuffer: a length of 0", TBuf<> empty; k.pipe.InitBuffer(empty, 0));
  CHECK_WRONG("InitBuffer: a queue without buffers", TQue<TPosition::VECIN, 1> none; k.pipe.InitBuffer(none, 0, 32));
  CHECK_WRONG("Get: a TBuf without InitBuffer", TBuf<> none; none.Get<float>());
  CHECK(error_of([] { GetBlockIdx(); }) == "called outside of a kernel");
  // Poison: memory that nobody has written, also in a buffer that comes round again.
  CHECK_WRONG("Add: reads memory that nothing has written", auto t = k.b.Get<float>(); Add(t, k.ready(), t, 8));
  CHECK_WRONG("DataCopy: reads memory that nothing has written", DataCopy(k.y, k.b.Get<float>(), 8));
  CHECK_WRONG("GetValue: reads memory that nothing has written", k.b.Get<float>().GetValue(0));
  CHECK_WRONG(
      "Muls: reads memory that nothing has written", for (int i = 0; i < 3; ++i) {
        auto t = k.in.AllocTensor<float>();
        if (i < 2) DataCopy(t, k.x, 8);
        k.in.EnQue(t);
        t = k.in.DeQue<float>();
        Muls(k.b.Get<float>(), t, 2.0F, 8);
        PipeBarrier<PIPE_V>();
        k.in.FreeTensor(t);
      });
  const DataCopyExtParams five(1, 20, 0, 0, 0);
  CHECK_RIGHT(auto t = k.a.Get<float>(); DataCopyPad(t, k.x, five, DataCopyPadExtParams<float>(true, 0, 3, 0.0F));
              PipeBarrier<PIPE_ALL>(); Muls(t, t, 2.0F, 8));
  CHECK_WRONG("Muls: reads memory that nothing has written", auto t = k.a.Get<float>();
              DataCopyPad(t, k.x, five, DataCopyPadExtParams<float>()); PipeBarrier<PIPE_ALL>(); Muls(t, t, 2.0F, 8));
  // The arena and every tensor of a queue start as nan.
  emulator::launch(1, [] {
    TPipe pipe;
    TQue<TPosition::VECIN, 1> in;
    pipe.InitBuffer(in, 1, 64);
    CHECK(std::isnan(emulator::get<float>(in.AllocTensor<float>(), 3)));
    emulator::core().buffers[0].state = emulator::Buffer::kFree;
  });
  // Global memory.
  CHECK_WRONG("DataCopy: global memory out of bounds, bytes 0 to 31 of 16", GlobalTensor<float> g;
              g.SetGlobalBuffer(k.x.GetPhyAddr(0), 4); DataCopy(k.a.Get<float>(), g, 8));
  CHECK_WRONG("DataCopy: global memory out of bounds, 64 bytes", GlobalTensor<float> g;
              g.SetGlobalBuffer(k.x.GetPhyAddr(0)); DataCopy(k.a.Get<float>(), g[248], 16));
  CHECK_WRONG("DataCopyPad: global memory out of bounds, 4 bytes", GlobalTensor<float> g;
              g.SetGlobalBuffer(k.x.GetPhyAddr(0) - 1); DataCopyPad(g, k.ready(), DataCopyExtParams(1, 4, 0, 0, 0)));
  CHECK_WRONG("GlobalTensor: offset 257 beyond 256 elements", k.x[257]);
  CHECK_WRONG("GetValue: global memory out of bounds, bytes 1024 to 1027 of 1024", k.x.GetValue(256));
}

void test_queues() {
  CHECK_WRONG("AllocTensor: all 2 buffers of the queue are taken",
              for (int i = 0; i < 3; ++i) k.in.AllocTensor<float>());
  CHECK_WRONG("DeQue: the queue is empty", k.in.DeQue<float>());
  CHECK_WRONG("EnQue: a queue of depth 1 is full", for (int i = 0; i < 2; ++i) k.in.EnQue(k.in.AllocTensor<float>()));
  CHECK_WRONG("EnQue: a tensor that is not allocated", auto t = k.in.AllocTensor<float>(); k.in.EnQue(t);
              auto u = k.in.DeQue<float>(); k.in.EnQue(u));
  CHECK_WRONG("FreeTensor: a tensor that is not dequeued", auto t = k.in.AllocTensor<float>(); k.in.FreeTensor(t));
  CHECK_WRONG("FreeTensor: a tensor that was freed", k.in.EnQue(k.in.AllocTensor<float>());
              auto t = k.in.DeQue<float>(); k.in.FreeTensor(t); k.in.FreeTensor(t));
  CHECK_WRONG("Duplicate: a tensor that was freed", k.in.EnQue(k.in.AllocTensor<float>()); auto t = k.in.DeQue<float>();
              k.in.FreeTensor(t); Duplicate(t, 0.0F, 8));
  CHECK_WRONG("EnQue: a tensor of another queue", k.in.EnQue(k.out.AllocTensor<float>()));
  CHECK_WRONG("AllocTensor: a queue without InitBuffer", TQue<TPosition::VECIN, 1> q; q.AllocTensor<float>());
  CHECK_WRONG("Add: a tensor without memory", LocalTensor<float> t; Add(t, t, t, 8));
  CHECK_WRONG("end of kernel: a tensor of queue 0 was not freed", k.in.EnQue(k.in.AllocTensor<float>()));
  CHECK_WRONG("end of kernel: a tensor of queue 1 was not freed", k.out.AllocTensor<float>());
}

void test_ends() {
  CHECK_WRONG("end of kernel: flag 3 of event 2 was set and never waited for", SetFlag<HardEvent::V_MTE3>(3));
  CHECK_WRONG("SetFlag: flag 0 is set already", SetFlag<HardEvent::V_S>(0); SetFlag<HardEvent::V_S>(0));
  CHECK_WRONG("WaitFlag: flag 1 is not set, the pipe waits for ever", SetFlag<HardEvent::V_S>(0);
              WaitFlag<HardEvent::V_S>(1));
  CHECK_WRONG("SetFlag: an event id from 0 to 7, got 8", SetFlag<HardEvent::V_S>(8));
  CHECK_WRONG("WaitFlag: an event id from 0 to 7, got -1", WaitFlag<HardEvent::V_S>(-1));
  CHECK_WRONG("AllocEventID: all 8 ids of an event are taken",
              for (int i = 0; i < 9; ++i) k.pipe.AllocEventID<HardEvent::V_S>());
  CHECK_WRONG("end of kernel: an id of event 6 was not released", k.pipe.AllocEventID<HardEvent::V_S>());
  CHECK_WRONG("ReleaseEventID: 1 is not taken", k.pipe.AllocEventID<HardEvent::V_S>();
              k.pipe.ReleaseEventID<HardEvent::V_S>(1));
  CHECK_WRONG("end of kernel: atomic mode was not reset", SetAtomicAdd<float>());
  CHECK_RIGHT(SetAtomicAdd<float>(); SetAtomicNone());
  CHECK_WRONG("end of kernel: the mask was not reset", SetMaskCount());
  CHECK_WRONG("end of kernel: the mask was not reset", SetVectorMask<float>(0, 15));
  CHECK_RIGHT(SetMaskCount(); SetVectorMask<float>(0, 15); SetMaskNorm(); ResetMask());
  CHECK_WRONG("end of kernel: scalar stores to global memory were not written back from the cache", k.y.SetValue(0, 1));
  CHECK_RIGHT(k.y.SetValue(0, 1); DataCacheCleanAndInvalid<float, CacheLine::SINGLE_CACHE_LINE>(k.y));
}

}  // namespace

void test_emulator() {
  test_copies();
  test_strides();
  test_counts();
  test_memory();
  test_queues();
  test_ends();
}

}  // namespace native
