// What the kernels share on the device: tiles of any length in and out, and sums in 64 lanes.
#pragma once

#include "kernel_operator.h"

namespace boost_ext::ascend {

// A class holds a pointer to its kernel's TPipe: with the TPipe inside, the compiler keeps all its scalars in memory.
//
// The storage types are float, half and bfloat16_t; arithmetic is float.
template <class T> constexpr bool kIsFloat = sizeof(T) == 4;
constexpr std::uint32_t kLanes = 64;  // float32 values in one repeat
// Of the 192 KiB of UB, CANN keeps 8 KiB and 256 bytes for itself: Select writes there.
constexpr std::uint32_t kUsableBytes = 196608 - 8192 - 256;

// count elements from the at-th on; what follows them up to the end of 32 bytes is undefined.
template <class T>
__aicore__ inline void Load(const AscendC::LocalTensor<T>& to, const AscendC::GlobalTensor<T>& from, std::int64_t at,
                            std::uint32_t count) {
  const AscendC::DataCopyExtParams copy(1, count * static_cast<std::uint32_t>(sizeof(T)), 0, 0, 0);
  const AscendC::DataCopyPadExtParams<T> undefined;
  AscendC::DataCopyPad(to, from[at], copy, undefined);
}
template <class T>
__aicore__ inline void Store(const AscendC::GlobalTensor<T>& to, std::int64_t at, const AscendC::LocalTensor<T>& from,
                             std::uint32_t count) {
  const AscendC::DataCopyExtParams copy(1, count * static_cast<std::uint32_t>(sizeof(T)), 0, 0, 0);
  AscendC::DataCopyPad(to[at], from, copy);
}

// The same into the next tile of a queue.
template <class T>
__aicore__ inline void CopyIn(AscendC::TQue<AscendC::TPosition::VECIN, 1>& queue, const AscendC::GlobalTensor<T>& from,
                              std::int64_t at, std::uint32_t count) {
  AscendC::LocalTensor<T> x = queue.template AllocTensor<T>();
  Load(x, from, at, count);
  queue.EnQue(x);
}

// The values of a tile in float32: itself, or converted into `wide`.
template <class T>
__aicore__ inline AscendC::LocalTensor<float> Widen(const AscendC::LocalTensor<T>& x,
                                                    const AscendC::LocalTensor<float>& wide, std::uint32_t count) {
  if constexpr (kIsFloat<T>) {
    return x;
  } else {
    AscendC::Cast(wide, x, AscendC::RoundMode::CAST_NONE, count);
    AscendC::PipeBarrier<PIPE_V>();
    return wide;
  }
}

// Where the float32 result of a tile is computed: in the tile that leaves, or beside it and rounded into it at the end.
template <class T>
__aicore__ inline AscendC::LocalTensor<float> Wide(const AscendC::LocalTensor<T>& x,
                                                   const AscendC::LocalTensor<float>& wide) {
  if constexpr (kIsFloat<T>) {
    return x;
  } else {
    return wide;
  }
}
template <class T>
__aicore__ inline void Narrow(const AscendC::LocalTensor<T>& to, const AscendC::LocalTensor<float>& wide,
                              std::uint32_t count) {
  if constexpr (!kIsFloat<T>) {
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::Cast(to, wide, AscendC::RoundMode::CAST_RINT, count);
  }
}

// lanes[i % 64] += x[i]; count of at most 255 * 64. Needs a barrier before and leaves one behind.
__aicore__ inline void AddLanes(const AscendC::LocalTensor<float>& lanes, const AscendC::LocalTensor<float>& x,
                                std::uint32_t count) {
  const AscendC::BinaryRepeatParams standing(1, 1, 1, 0, 8, 0);
  const std::uint32_t whole = count / kLanes;
  if (whole > 0) {
    AscendC::Add(lanes, x, lanes, static_cast<std::uint64_t>(kLanes), static_cast<std::uint8_t>(whole), standing);
    AscendC::PipeBarrier<PIPE_V>();
  }
  const std::uint32_t rest = count - whole * kLanes;
  if (rest > 0) {
    AscendC::Add(lanes, x[whole * kLanes], lanes, static_cast<std::uint64_t>(rest), static_cast<std::uint8_t>(1),
                 standing);
    AscendC::PipeBarrier<PIPE_V>();
  }
}

// One pipe waits for another, here and now: for places that are passed once a launch.
template <AscendC::HardEvent event> __aicore__ inline void Wait(AscendC::TPipe& pipe) {
  const AscendC::TEventID id = pipe.AllocEventID<event>();
  AscendC::SetFlag<event>(id);
  AscendC::WaitFlag<event>(id);
  pipe.ReleaseEventID<event>(id);
}

// The elements of this core, where the parts of a tensor begin with core `first`.
struct Range {
  std::int64_t begin, end;
};
__aicore__ inline Range MyRange(std::int64_t n, std::int64_t per_core, std::int64_t first = 0) {
  std::int64_t part = AscendC::GetBlockIdx() - first;
  if (part < 0) part += AscendC::GetBlockNum();
  const std::int64_t begin = part * per_core;
  const std::int64_t end = begin + per_core;
  return {begin < n ? begin : n, end < n ? end : n};
}
__aicore__ inline std::uint32_t TileCount(std::int64_t left, std::uint32_t tile) {
  return left < static_cast<std::int64_t>(tile) ? static_cast<std::uint32_t>(left) : tile;
}

// On one core: out[i] (+)= the sum of rows[c * row + i] over c, in the order of c, row = values rounded up to eights:
// what the cores of a launch have left. A launch of its own instead of SyncAll, in which cores that run wait for cores
// that another stream may hold: two such kernels on two streams can wait for one another for ever.
class SumRows {
 public:
  __aicore__ inline SumRows() {}
  __aicore__ inline void Init(GM_ADDR rows, GM_ADDR out, std::int64_t values, std::int32_t count,
                              std::int32_t accumulate, AscendC::TPipe* pipe) {
    pipe_ = pipe;
    values_ = values;
    row_ = (values + 7) / 8 * 8;
    count_ = static_cast<std::uint32_t>(count);
    accumulate_ = accumulate;
    rows_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(rows), count * row_);
    out_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(out), values);
    pipe_->InitBuffer(parts_, (count_ + 1) * kPiece * sizeof(float));
    pipe_->InitBuffer(sums_, kPiece * sizeof(float));
  }

  __aicore__ inline void Process() {
    for (std::int64_t first = 0; first < values_; first += kPiece) AddPiece(first, TileCount(values_ - first, kPiece));
  }

 private:
  static constexpr std::uint32_t kPiece = 64;

  __aicore__ inline void AddPiece(std::int64_t first, std::uint32_t count) {
    const std::uint32_t width = (count + 7) / 8 * 8;
    AscendC::LocalTensor<float> parts = parts_.Get<float>();
    const AscendC::DataCopyExtParams copy(static_cast<std::uint16_t>(count_), count * sizeof(float),
                                          static_cast<std::uint32_t>(row_ - count) * sizeof(float), 0, 0);
    AscendC::DataCopyPad(parts, rows_[first], copy, AscendC::DataCopyPadExtParams<float>());
    if (accumulate_ != 0) Load(parts[count_ * width], out_, first, count);
    Wait<AscendC::HardEvent::MTE2_V>(*pipe_);
    AscendC::LocalTensor<float> sums = sums_.Get<float>();
    AscendC::Duplicate(sums, 0.0F, count);
    for (std::uint32_t part = 0; part < count_ + (accumulate_ != 0 ? 1 : 0); ++part) {
      AscendC::PipeBarrier<PIPE_V>();
      AscendC::Add(sums, sums, parts[part * width], count);
    }
    Wait<AscendC::HardEvent::V_MTE3>(*pipe_);
    Store(out_, first, sums, count);
    AscendC::PipeBarrier<PIPE_ALL>();
  }

  AscendC::TPipe* pipe_;
  AscendC::TBuf<AscendC::TPosition::VECCALC> parts_, sums_;
  AscendC::GlobalTensor<float> rows_, out_;
  std::int64_t values_, row_;
  std::uint32_t count_;
  std::int32_t accumulate_;
};

}  // namespace boost_ext::ascend
