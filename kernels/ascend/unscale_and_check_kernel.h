// g <- g * inv_scale, and whether a product is inf or nan: csrc/ops/unscale_and_check.h.
//
// found is one float32 that the caller has set to 0. Each core adds the sum of x * 0 over its products, as they are
// stored: nan where one of them is inf or nan, else 0. So found stays 0 or becomes nan, in any order of the cores, and
// serves a list of tensors, some in a launch and launch after launch. With inv_scale = 1 nothing is written to g.
// The core must work in INF_NAN mode (the default of Ascend 910B); in saturation mode inf becomes the largest value.
#pragma once

#include "tile.h"

namespace boost_ext::ascend {

template <class T> class UnscaleAndCheck {
 public:
  __aicore__ inline UnscaleAndCheck() {}
  __aicore__ inline void Init(GM_ADDR found, float inv_scale, AscendC::TPipe* pipe) {
    pipe_ = pipe;
    found_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(found), 1);
    scale_ = inv_scale;
    pipe_->InitBuffer(in_, 2, kTile * sizeof(T));
    pipe_->InitBuffer(out_, 2, kTile * sizeof(T));
    pipe_->InitBuffer(wide_, kTile * sizeof(float));
    pipe_->InitBuffer(lanes_, kLanes * sizeof(float));
    pipe_->InitBuffer(sum_, kLanes * sizeof(float));
  }

  // Table is UnscaleTable of tiling.h, which a device header does not include.
  template <class Table> __aicore__ inline void Process(const Table& table) {
    AscendC::Duplicate(lanes_.Get<float>(), 0.0F, kLanes);
    for (std::int64_t i = 0; i < table.count; ++i) {
      grads_.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(table.tensors[i].grads), table.tensors[i].n);
      Scale(MyRange(table.tensors[i].n, table.tensors[i].per_core, table.tensors[i].first));
    }
    Finish();
  }

 private:
  // Eight thousand elements fill most of UB for float32, and no tile has more than 255 repeats.
  static constexpr std::uint32_t kTile = 8192;

  __aicore__ inline void Scale(const Range& range) {
    for (std::int64_t at = range.begin; at < range.end; at += kTile) {
      const std::uint32_t count = TileCount(range.end - at, kTile);
      CopyIn(in_, grads_, at, count);
      Compute(count);
      if (scale_ != 1.0F) CopyOut(at, count);
    }
  }

  __aicore__ inline void Compute(std::uint32_t count) {
    AscendC::LocalTensor<T> g = in_.DeQue<T>();
    AscendC::LocalTensor<float> wide = wide_.Get<float>();
    AscendC::LocalTensor<float> x = Widen(g, wide, count);
    if (scale_ != 1.0F) {
      AscendC::LocalTensor<T> scaled = out_.AllocTensor<T>();
      AscendC::LocalTensor<float> product = Wide(scaled, wide);
      AscendC::Muls(product, x, scale_, count);
      Narrow(scaled, product, count);
      AscendC::PipeBarrier<PIPE_V>();
      x = Widen(scaled, wide, count);  // as stored: a half may overflow in the rounding
      AscendC::Muls(wide, x, 0.0F, count);
      out_.EnQue(scaled);
    } else {
      AscendC::Muls(wide, x, 0.0F, count);
    }
    in_.FreeTensor(g);
    AscendC::PipeBarrier<PIPE_V>();
    AddLanes(lanes_.Get<float>(), wide, count);
  }

  __aicore__ inline void CopyOut(std::int64_t at, std::uint32_t count) {
    AscendC::LocalTensor<T> scaled = out_.DeQue<T>();
    Store(grads_, at, scaled, count);
    out_.FreeTensor(scaled);
  }

  __aicore__ inline void Finish() {
    AscendC::LocalTensor<float> sum = sum_.Get<float>();
    AscendC::PipeBarrier<PIPE_V>();  // on a core without elements the lanes were only just set
    AscendC::WholeReduceSum(sum, lanes_.Get<float>(), kLanes, 1, 1, 1, 8);
    Wait<AscendC::HardEvent::V_MTE3>(*pipe_);
    AscendC::SetAtomicAdd<float>();
    Store(found_, 0, sum, 1);
    AscendC::SetAtomicNone();
  }

  AscendC::TPipe* pipe_;
  AscendC::TQue<AscendC::TPosition::VECIN, 1> in_;
  AscendC::TQue<AscendC::TPosition::VECOUT, 1> out_;
  AscendC::TBuf<AscendC::TPosition::VECCALC> wide_, lanes_, sum_;
  AscendC::GlobalTensor<T> grads_;
  AscendC::GlobalTensor<float> found_;
  float scale_;
};

// After the last tensor, on one core: found <- 1 where it is nan, else 0.
class Flag {
 public:
  __aicore__ inline Flag() {}
  __aicore__ inline void Init(GM_ADDR found, AscendC::TPipe* pipe) {
    pipe_ = pipe;
    found_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(found), 1);
    pipe_->InitBuffer(sum_, 32);
    pipe_->InitBuffer(flag_, 32);
  }

  __aicore__ inline void Process() {
    Load(sum_.Get<float>(), found_, 0, 1);
    Wait<AscendC::HardEvent::MTE2_S>(*pipe_);
    const float sum = sum_.Get<float>().GetValue(0);
    Wait<AscendC::HardEvent::S_MTE3>(*pipe_);
    AscendC::Duplicate(flag_.Get<float>(), sum == 0.0F ? 0.0F : 1.0F, 8);
    Wait<AscendC::HardEvent::V_MTE3>(*pipe_);
    Store(found_, 0, flag_.Get<float>(), 1);
  }

 private:
  AscendC::TPipe* pipe_;
  AscendC::TBuf<AscendC::TPosition::VECCALC> sum_, flag_;
  AscendC::GlobalTensor<float> found_;
};

}  // namespace boost_ext::ascend
