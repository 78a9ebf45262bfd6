// One step of Momentum, Adam or AdamWeightDecay over some tensors: csrc/ops/optimizer_step.h, without centralization.
//
// Every operation is one instruction that rounds once, in the order of the CPU kernel. Weights and gradients are T;
// with `master` the arithmetic happens on float32 masters, and a weight that is no longer what its master rounds to was
// set by somebody else, so that the master takes its value. State is float32.
#pragma once

#include "tile.h"

namespace boost_ext::ascend {

// Table is StepTable of tiling.h and Values its StepValues, which a device header does not include; rule is its
// StepRule.
template <class T, int rule, bool master, class Table, class Values> class OptimizerStep {
 public:
  __aicore__ inline OptimizerStep() {}
  __aicore__ inline void Init(AscendC::TPipe* pipe) {
    pipe_ = pipe;
    pipe_->InitBuffer(in_, 2, kSlots * kTile * sizeof(float));
    pipe_->InitBuffer(out_, 2, (kSlots - 1) * kTile * sizeof(float));
    pipe_->InitBuffer(work_, 4 * kTile * sizeof(float));
    if constexpr (master) pipe_->InitBuffer(same_, kTile / 8);
  }

  __aicore__ inline void Process(const Table& table) {
    for (std::int64_t i = 0; i < table.count; ++i) {
      const std::int64_t n = table.tensors[i].n;
      w_.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(table.tensors[i].weights), n);
      g_.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(table.tensors[i].grads), n);
      m_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(table.tensors[i].state0), n);
      if constexpr (kAdaptive) v_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(table.tensors[i].state1), n);
      if constexpr (master) master_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(table.tensors[i].masters), n);
      values_ = table.tensors[i].values;
      Step(MyRange(n, table.tensors[i].per_core, table.tensors[i].first));
    }
  }

 private:
  static constexpr bool kAdaptive = rule != 0;
  static constexpr bool kDecoupled = rule == 2;
  // One buffer holds a tile of each tensor, one after the other: there are fewer events than tensors. Tiles are as long
  // as UB allows: two buffers for what comes in, two for what leaves (all but the gradient), four tiles of work, and
  // for masters a bit an element.
  static constexpr std::uint32_t kSlots = (kAdaptive ? 4 : 3) + (master ? 1 : 0);
  static constexpr std::uint32_t kTile = kUsableBytes / ((2 * kSlots + 2 * (kSlots - 1) + 4) * 4 + 1) / 256 * 256;
  static constexpr std::uint32_t kWeight = 0;
  static constexpr std::uint32_t kFirst = kTile;
  static constexpr std::uint32_t kSecond = 2 * kTile;
  static constexpr std::uint32_t kMaster = (kAdaptive ? 3 : 2) * kTile;
  static constexpr std::uint32_t kGrad = kMaster + (master ? kTile : 0);
  static_assert(kSlots == kGrad / kTile + 1, "a slot for each tensor");

  __aicore__ inline void Step(const Range& range) {
    for (std::int64_t at = range.begin; at < range.end; at += kTile) {
      const std::uint32_t count = TileCount(range.end - at, kTile);
      CopyIn(at, count);
      Compute(count);
      CopyOut(at, count);
    }
  }

  __aicore__ inline void CopyIn(std::int64_t at, std::uint32_t count) {
    AscendC::LocalTensor<float> in = in_.template AllocTensor<float>();
    Load(in[kWeight].template ReinterpretCast<T>(), w_, at, count);
    Load(in[kFirst], m_, at, count);
    if constexpr (kAdaptive) Load(in[kSecond], v_, at, count);
    if constexpr (master) Load(in[kMaster], master_, at, count);
    Load(in[kGrad].template ReinterpretCast<T>(), g_, at, count);
    in_.EnQue(in);
  }

  __aicore__ inline void Compute(std::uint32_t count) {
    AscendC::LocalTensor<float> in = in_.template DeQue<float>();
    AscendC::LocalTensor<float> out = out_.template AllocTensor<float>();
    AscendC::LocalTensor<float> work = work_.Get<float>();
    AscendC::LocalTensor<float> t = work[kTile];
    AscendC::LocalTensor<float> u = work[2 * kTile];

    AscendC::LocalTensor<float> w = Weights(in, work, t, u, count);
    AscendC::LocalTensor<float> g = Widen(in[kGrad].template ReinterpretCast<T>(), u, count);
    AscendC::Muls(u, g, values_.scale, count);
    AscendC::Muls(t, w, values_.l2, count);
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::Add(u, u, t, count);
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::LocalTensor<float> step =
        kAdaptive ? Moments(in, out, t, u, work[3 * kTile], count) : Accumulate(in, out, t, u, count);
    if constexpr (kDecoupled) {  // step += decay w, then all times lr
      AscendC::Muls(u, w, values_.decay, count);
      AscendC::PipeBarrier<PIPE_V>();
      AscendC::Add(step, step, u, count);
      AscendC::PipeBarrier<PIPE_V>();
      AscendC::Muls(step, step, values_.lr, count);
      AscendC::PipeBarrier<PIPE_V>();
    }
    AscendC::LocalTensor<T> narrow = out[kWeight].template ReinterpretCast<T>();
    AscendC::LocalTensor<float> next = work;
    if constexpr (master) {
      next = out[kMaster];
    } else {
      next = Wide(narrow, work);
    }
    AscendC::Sub(next, w, step, count);
    Narrow(narrow, next, count);
    AscendC::PipeBarrier<PIPE_V>();
    in_.FreeTensor(in);
    out_.EnQue(out);
  }

  // The weights in float32, `kept` or where they lie; t and u are free.
  __aicore__ inline AscendC::LocalTensor<float> Weights(const AscendC::LocalTensor<float>& in,
                                                        const AscendC::LocalTensor<float>& kept,
                                                        const AscendC::LocalTensor<float>& t,
                                                        const AscendC::LocalTensor<float>& u, std::uint32_t count) {
    AscendC::LocalTensor<T> stored = in[kWeight].template ReinterpretCast<T>();
    if constexpr (!master) {
      return Widen(stored, kept, count);
    } else {
      const std::uint32_t whole = (count + kLanes - 1) / kLanes * kLanes;  // Compare takes repeats only
      AscendC::LocalTensor<float> own = in[kMaster];
      AscendC::LocalTensor<T> rounded = kept.template ReinterpretCast<T>();
      AscendC::LocalTensor<std::uint8_t> same = same_.Get<std::uint8_t>();
      AscendC::Duplicate(t, 0.0F, whole);
      AscendC::Duplicate(u, 0.0F, whole);
      AscendC::Cast(rounded, own, AscendC::RoundMode::CAST_RINT, count);
      AscendC::PipeBarrier<PIPE_V>();
      AscendC::Cast(t, rounded, AscendC::RoundMode::CAST_NONE, count);
      AscendC::Cast(u, stored, AscendC::RoundMode::CAST_NONE, count);
      AscendC::PipeBarrier<PIPE_V>();
      AscendC::Compare(same, t, u, AscendC::CMPMODE::EQ, whole);
      AscendC::PipeBarrier<PIPE_V>();
      AscendC::Select(kept, same, own, u, AscendC::SELMODE::VSEL_TENSOR_TENSOR_MODE, count);
      AscendC::PipeBarrier<PIPE_V>();
      return kept;
    }
  }

  // a = m a + u; gives lr (nesterov ? u + m a : a).
  __aicore__ inline AscendC::LocalTensor<float> Accumulate(const AscendC::LocalTensor<float>& in,
                                                           const AscendC::LocalTensor<float>& out,
                                                           const AscendC::LocalTensor<float>& t,
                                                           const AscendC::LocalTensor<float>& u, std::uint32_t count) {
    AscendC::LocalTensor<float> a = out[kFirst];
    AscendC::Muls(a, in[kFirst], values_.keep1, count);
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::Add(a, a, u, count);
    AscendC::PipeBarrier<PIPE_V>();
    if (values_.nesterov != 0) {
      AscendC::Muls(t, a, values_.keep1, count);
      AscendC::PipeBarrier<PIPE_V>();
      AscendC::Add(t, u, t, count);
      AscendC::PipeBarrier<PIPE_V>();
      AscendC::Muls(t, t, values_.lr, count);
    } else {
      AscendC::Muls(t, a, values_.lr, count);
    }
    AscendC::PipeBarrier<PIPE_V>();
    return t;
  }

  // m and v; gives lr m / (sqrt(v) + eps), without lr where the decay is decoupled. u is overwritten.
  __aicore__ inline AscendC::LocalTensor<float> Moments(const AscendC::LocalTensor<float>& in,
                                                        const AscendC::LocalTensor<float>& out,
                                                        const AscendC::LocalTensor<float>& t,
                                                        const AscendC::LocalTensor<float>& u,
                                                        const AscendC::LocalTensor<float>& step, std::uint32_t count) {
    AscendC::LocalTensor<float> m = out[kFirst];
    AscendC::LocalTensor<float> v = out[kSecond];
    AscendC::Muls(m, in[kFirst], values_.keep1, count);
    AscendC::Muls(t, u, values_.add1, count);
    AscendC::Muls(v, in[kSecond], values_.keep2, count);
    AscendC::Mul(step, u, u, count);
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::Add(m, m, t, count);
    AscendC::Muls(step, step, values_.add2, count);
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::Add(v, v, step, count);
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::Muls(step, m, values_.nesterov != 0 ? values_.keep1 : 1.0F, count);
    AscendC::Sqrt(u, v, count);
    AscendC::PipeBarrier<PIPE_V>();
    if (values_.nesterov != 0) {
      AscendC::Add(step, step, t, count);  // t is still (1 - b1) u
      AscendC::PipeBarrier<PIPE_V>();
    }
    AscendC::Adds(u, u, values_.eps, count);
    if constexpr (!kDecoupled) { AscendC::Muls(step, step, values_.lr, count); }
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::Div(step, step, u, count);
    AscendC::PipeBarrier<PIPE_V>();
    return step;
  }

  __aicore__ inline void CopyOut(std::int64_t at, std::uint32_t count) {
    AscendC::LocalTensor<float> out = out_.template DeQue<float>();
    Store(w_, at, out[kWeight].template ReinterpretCast<T>(), count);
    Store(m_, at, out[kFirst], count);
    if constexpr (kAdaptive) Store(v_, at, out[kSecond], count);
    if constexpr (master) Store(master_, at, out[kMaster], count);
    out_.FreeTensor(out);
  }

  AscendC::TPipe* pipe_;
  AscendC::TQue<AscendC::TPosition::VECIN, 1> in_;
  AscendC::TQue<AscendC::TPosition::VECOUT, 1> out_;
  AscendC::TBuf<AscendC::TPosition::VECCALC> work_, same_;
  AscendC::GlobalTensor<T> w_, g_;
  AscendC::GlobalTensor<float> m_, v_, master_;
  Values values_;
};

}  // namespace boost_ext::ascend
