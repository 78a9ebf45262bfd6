// Kernels without a barrier that they need, on one core and on several; and the order in which cores run.
#include <set>

#include "wrong.h"

namespace native {
namespace {

constexpr const char* kVectorAfterVector = "Muls: pipe V has not waited for the write of pipe V";

void test_pipes() {
  const auto twice = [](Kernel& k) {
    LocalTensor<float> t = k.ready();
    Muls(t, t, 2.0F, 64);
    Muls(t, t, 2.0F, 64);
  };
  CHECK(wrong(twice) == kVectorAfterVector);
  emulator::settings.strict = false;  // the compiler inserts what is missing within a pipe, and nothing else
  CHECK(wrong(twice) == "nothing");
  CHECK_WRONG("Muls: pipe V has not waited for the write of pipe MTE2", auto t = k.a.Get<float>(); DataCopy(t, k.x, 64);
              Muls(t, t, 2.0F, 64));
  CHECK_WRONG("DataCopy: pipe MTE3 has not waited for the write of pipe V", auto t = k.ready(); Muls(t, t, 2.0F, 64);
              DataCopy(k.y, t, 64));
  emulator::settings.strict = true;

  CHECK_RIGHT(auto t = k.ready(); Muls(t, t, 2.0F, 64); PipeBarrier<PIPE_V>(); Muls(t, t, 2.0F, 64));
  CHECK_RIGHT(auto t = k.ready(); Muls(t, t, 2.0F, 64); Muls(t[64], t[64], 2.0F, 64));
  CHECK_WRONG(kVectorAfterVector, auto t = k.ready(); Muls(t, t, 2.0F, 9); Muls(t[8], t[8], 2.0F, 64));
  CHECK_WRONG("Duplicate: pipe V has not waited for the read of pipe V", auto t = k.ready();
              Muls(k.b.Get<float>(), t, 2.0F, 64); Duplicate(t, 0.0F, 64));
  CHECK_WRONG("DataCopy: pipe MTE2 has not waited for the read of pipe V", auto t = k.ready();
              Muls(k.b.Get<float>(), t, 2.0F, 64); DataCopy(t, k.x, 64));
  CHECK_WRONG("DataCopy: pipe MTE2 has not waited for the write of pipe MTE2", auto t = k.a.Get<float>();
              DataCopy(t, k.x, 64); DataCopy(t, k.x, 64));
  CHECK_WRONG("Duplicate: pipe V has not waited for the read of pipe MTE3", auto t = k.ready(); DataCopy(k.y, t, 64);
              Duplicate(t, 0.0F, 64));
  CHECK_WRONG("WholeReduceSum: pipe V has not waited for the write of pipe V", Duplicate(k.a.Get<float>(), 0.0F, 64);
              WholeReduceSum(k.b.Get<float>(), k.a.Get<float>(), 64, 1, 1, 1, 8));
  CHECK_RIGHT(Duplicate(k.a.Get<float>(), 0.0F, 64); PipeBarrier<PIPE_V>();
              WholeReduceSum(k.b.Get<float>(), k.a.Get<float>(), 64, 1, 1, 1, 8));
  // Scalar accesses are the fourth pipe.
  CHECK_WRONG("GetValue: pipe S has not waited for the write of pipe V", auto t = k.ready(); Muls(t, t, 2.0F, 8);
              t.GetValue(0));
  CHECK_WRONG("Muls: pipe V has not waited for the write of pipe S", auto t = k.ready(); t.SetValue(0, 1);
              Muls(t, t, 2.0F, 8));
  CHECK_WRONG("Duplicate: pipe V has not waited for the read of pipe S", auto t = k.ready(); t.GetValue(0);
              Duplicate(t, 2.0F, 8));
  CHECK_RIGHT(auto t = k.ready(); t.SetValue(0, 1); t.GetValue(0); SetFlag<HardEvent::S_V>(0);
              WaitFlag<HardEvent::S_V>(0); Muls(t, t, 2.0F, 8));
  // Through global memory.
  CHECK_WRONG("DataCopy: pipe MTE2 has not waited for the write of pipe MTE3", auto t = k.ready(); DataCopy(k.y, t, 8);
              DataCopy(k.b.Get<float>(), k.y, 8));
  CHECK_RIGHT(auto t = k.ready(); DataCopy(k.y, t, 8); SetFlag<HardEvent::MTE3_MTE2>(0);
              WaitFlag<HardEvent::MTE3_MTE2>(0); DataCopy(k.b.Get<float>(), k.y, 8));
  CHECK_WRONG("DataCopy: pipe MTE3 has not waited for the read of pipe MTE2", auto t = k.ready();
              DataCopy(k.b.Get<float>(), k.y, 8); DataCopy(k.y, t, 8));
}

void test_waiting() {
  // What a pipe has waited for is known to those that wait for it.
  CHECK_RIGHT(auto t = k.a.Get<float>(); DataCopy(t, k.x, 64); SetFlag<HardEvent::MTE2_V>(0);
              WaitFlag<HardEvent::MTE2_V>(0); SetFlag<HardEvent::V_MTE3>(0); WaitFlag<HardEvent::V_MTE3>(0);
              DataCopy(k.y, t, 64));
  CHECK_WRONG("Muls: pipe V has not waited for the write of pipe MTE2", auto t = k.a.Get<float>();
              SetFlag<HardEvent::MTE2_V>(0); DataCopy(t, k.x, 64); WaitFlag<HardEvent::MTE2_V>(0);
              Muls(t, t, 2.0F, 64));
  // Queues bring the flags with them, both ways, for every turn of their buffers.
  const auto turns = [](Kernel& k, bool barrier) {
    for (std::uint32_t at = 0; at < 256; at += 32) {
      auto t = k.in.AllocTensor<float>();
      DataCopy(t, k.x[at], 32);
      k.in.EnQue(t);
      t = k.in.DeQue<float>();
      auto r = k.out.AllocTensor<float>();
      Muls(r, t, 2.0F, 32);
      if (barrier) PipeBarrier<PIPE_V>();
      Add(r, r, t, 32);
      k.out.EnQue(r);
      k.in.FreeTensor(t);
      r = k.out.DeQue<float>();
      DataCopy(k.y[at], r, 32);
      k.out.FreeTensor(r);
    }
  };
  CHECK_RIGHT(turns(k, true));
  CHECK_WRONG("Add: pipe V has not waited for the write of pipe V", turns(k, false));
  // A tensor that is used before it is dequeued.
  CHECK_WRONG("Muls: pipe V has not waited for the write of pipe MTE2", auto t = k.in.AllocTensor<float>();
              DataCopy(t, k.x, 32); k.in.EnQue(t); Muls(k.b.Get<float>(), t, 2.0F, 32));
}

struct Cores {
  Bench bench;
  std::vector<std::int32_t> sync = std::vector<std::int32_t>(32, 0);
  emulator::Region sync_region{sync.data(), 128};
  GlobalTensor<std::int32_t> meeting() {
    GlobalTensor<std::int32_t> g;
    g.SetGlobalBuffer(sync.data(), 32);
    return g;
  }
  std::string run(const std::function<void(Kernel&)>& body) {
    return error_of([&] {
      emulator::launch(4, [&] {
        Kernel k(bench.from.data(), bench.to.data());
        body(k);
      });
    });
  }
};

void test_cores() {
  const auto store = [](Kernel& k, std::uint32_t at) { DataCopy(k.y[at], k.ready(), 8); };
  const auto meet_all = [](Kernel& k, Cores& cores) {
    PipeBarrier<PIPE_ALL>();
    SyncAll(cores.meeting(), k.b.Get<std::int32_t>());
  };
  const auto mine = [] { return static_cast<std::uint32_t>(8 * GetBlockIdx()); };
  Cores right;
  CHECK(right.run([&](Kernel& k) { store(k, mine()); }) == "nothing");
  CHECK(right.bench.to[31] == 1 && right.bench.to[32] == 0 && GlobalTensor<float>().GetSize() == 0);
  const std::string same = Cores().run([&](Kernel& k) { store(k, 0); });
  CHECK(same.find("that core ") != std::string::npos && same.find("writes, without SyncAll") != std::string::npos);

  // Additions of several cores are no race, an addition and a store are.
  const std::string mixed = Cores().run([&](Kernel& k) {
    if (GetBlockIdx() != 1) SetAtomicAdd<float>();
    store(k, 0);
    SetAtomicNone();
  });
  CHECK(mixed.find("writes, without SyncAll") != std::string::npos);

  const auto neighbour = [&](Kernel& k) {
    DataCopy(k.b.Get<float>(), k.y[static_cast<std::uint32_t>((mine() + 8) % 32)], 8);
  };
  const std::string early = Cores().run([&](Kernel& k) {
    store(k, mine());
    neighbour(k);
  });
  CHECK(early.find("without SyncAll between") != std::string::npos);
  const std::string overwritten = Cores().run([&](Kernel& k) {
    neighbour(k);
    store(k, mine());
  });
  CHECK(overwritten.find("without SyncAll between") != std::string::npos);
  std::set<std::string> kinds;  // one core writes what all read: before some of them, or after some
  for (emulator::settings.seed = 1; emulator::settings.seed <= 8; ++emulator::settings.seed) {
    kinds.insert(Cores().run([&](Kernel& k) {
      if (GetBlockIdx() == 2) return store(k, 0);
      DataCopy(k.b.Get<float>(), k.y, 8);
    }));
  }
  emulator::settings.seed = 1;
  CHECK(kinds.size() == 2 && kinds.count("DataCopy: global memory that another core reads, without SyncAll between") &&
        kinds.count("DataCopy: global memory that core 2 writes, without SyncAll between"));
  Cores meet;
  CHECK(meet.run([&](Kernel& k) {
    store(k, mine());
    meet_all(k, meet);
    neighbour(k);
    meet_all(k, meet);
    store(k, mine());
  }) == "nothing");
  CHECK(meet.run([&](Kernel& k) { meet_all(k, meet); }) ==
        "SyncAll: the workspace in global memory was not zeroed before the launch");
  Cores busy;
  CHECK(busy.run([&](Kernel& k) {
    store(k, mine());
    SyncAll(busy.meeting(), k.b.Get<std::int32_t>());
  }) == "SyncAll: without PipeBarrier<PIPE_ALL> before it");
  Cores alone;
  CHECK(alone.run([&](Kernel& k) {
    if (GetBlockIdx() != 2) meet_all(k, alone);
  }) == "SyncAll: some cores ended without it, the others wait for ever");
  Cores crowd;
  emulator::settings.cores = 3;
  CHECK(crowd.run([&](Kernel& k) { meet_all(k, crowd); }) ==
        "SyncAll: 4 blocks on 3 cores, of which some start when others end");
  emulator::settings.cores = 4;
  CHECK(error_of([] { emulator::launch(0, [] {}); }) == "launch: 1 to 65535 blocks, got 0");
  Cores some;
  CHECK(some.run([&](Kernel& k) {
    PipeBarrier<PIPE_ALL>();
    SyncAll(some.meeting(), k.b.Get<std::int32_t>(), 2);
  }) == "SyncAll: for some of the cores is not emulated");
  Cores small;
  CHECK(small.run([&](Kernel& k) {
    GlobalTensor<std::int32_t> g;
    g.SetGlobalBuffer(small.sync.data(), 24);
    SyncAll(g, k.b.Get<std::int32_t>());
  }) == "SyncAll: global memory out of bounds, bytes 0 to 127 of 96");
}

// 2^25 and small numbers: float32 sums depend on the order, which depends on the seed; an integer does not.
void test_random_order() {
  std::set<float> sums;
  std::set<std::vector<int>> orders;
  for (std::uint32_t seed = 1; seed <= 20; ++seed) {
    emulator::settings.seed = seed;
    Cores cores;
    std::vector<int> order;
    CHECK(cores.run([&](Kernel& k) {
      const float values[] = {33554432.0F, 1.0F, -33554432.0F, 1.0F};
      order.push_back(static_cast<int>(GetBlockIdx()));
      LocalTensor<float> t = k.ready(values[GetBlockIdx()]);
      SetAtomicAdd<float>();
      DataCopy(k.y, t, 8);
      SetAtomicNone();
    }) == "nothing");
    sums.insert(cores.bench.to[7]);
    orders.insert(order);
    CHECK(cores.bench.to[8] == 0);
  }
  emulator::settings.seed = 1;
  CHECK(orders.size() > 8);
  CHECK(sums.size() > 1);
}

}  // namespace

void test_emulated_order() {
  test_pipes();
  test_waiting();
  test_cores();
  test_random_order();
}

}  // namespace native
