// What the tests of the emulator are written with: a kernel with some queues and buffers, and the expectation of an
// error.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "kernel_operator.h"
#include "native/harness.h"

namespace native {

using namespace AscendC;

constexpr std::uint32_t kWrongBytes = 1024;
constexpr std::uint32_t kWrongCount = 256;  // float32 elements

// A kernel, written in place: two queues, two buffers without order, 256 floats in and out.
struct Kernel {
  TPipe pipe;
  TQue<TPosition::VECIN, 1> in;
  TQue<TPosition::VECOUT, 1> out;
  TBuf<> a, b;
  GlobalTensor<float> x, y;
  Kernel(float* from, float* to) {
    x.SetGlobalBuffer(from, kWrongCount);
    y.SetGlobalBuffer(to, kWrongCount);
    pipe.InitBuffer(in, 2, kWrongBytes);
    pipe.InitBuffer(out, 2, kWrongBytes);
    pipe.InitBuffer(a, kWrongBytes);
    pipe.InitBuffer(b, kWrongBytes);
  }
  LocalTensor<float> ready(float value = 1) {  // `a`, filled
    LocalTensor<float> t = a.Get<float>();
    Duplicate(t, value, kWrongCount);
    PipeBarrier<PIPE_ALL>();
    return t;
  }
};

struct Bench {
  std::vector<float> from = std::vector<float>(kWrongCount, 2.0F), to = std::vector<float>(kWrongCount, 0.0F);
  emulator::Region from_region{from.data(), kWrongBytes}, to_region{to.data(), kWrongBytes};
};

inline std::string error_of(const std::function<void()>& launch) {
  try {
    launch();
  } catch (const emulator::Error& e) { return e.what(); }
  return "nothing";
}

// The mistakes of one kernel on one core, in strict mode.
inline std::string wrong(const std::function<void(Kernel&)>& body) {
  Bench bench;
  return error_of([&] {
    emulator::launch(1, [&] {
      Kernel k(bench.from.data(), bench.to.data());
      body(k);
    });
  });
}

#define CHECK_WRONG(message, ...)                 \
  native::check_text(__FILE__, __LINE__, message, \
                     native::wrong([&]([[maybe_unused]] native::Kernel& k) { __VA_ARGS__; }))
#define CHECK_RIGHT(...) CHECK_WRONG("nothing", __VA_ARGS__)

}  // namespace native
