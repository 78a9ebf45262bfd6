// AdaSum of two tensors: csrc/ops/adasum.h. Two kernels, since a run over ranks adds up the dots between them.
//
// The dots are float32 here, for the vector unit has no float64: sums in 64 lanes a tile, the tiles' lanes added, one
// row a core; a second launch adds the rows in the order of the cores. The same bits in every run.
#pragma once

#include "tile.h"

namespace boost_ext::ascend {

// <a,b>, |a|^2, |b|^2 of each core's part.
template <class T> class AdasumDots {
 public:
  __aicore__ inline AdasumDots() {}
  // rows: 32 bytes a core; of the last one only the three sums are written.
  __aicore__ inline void Init(GM_ADDR a, GM_ADDR b, GM_ADDR rows, std::int64_t n, std::int64_t per_core,
                              AscendC::TPipe* pipe) {
    pipe_ = pipe;
    a_.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(a), n);
    b_.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(b), n);
    rows_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(rows), (AscendC::GetBlockNum() - 1) * kRow + kDots);
    range_ = MyRange(n, per_core);
    pipe_->InitBuffer(a_in_, 2, kTile * sizeof(T));
    pipe_->InitBuffer(b_in_, 2, kTile * sizeof(T));
    pipe_->InitBuffer(wide_, 2 * kTile * sizeof(float));
    pipe_->InitBuffer(product_, kTile * sizeof(float));
    pipe_->InitBuffer(tile_, kDots * kLanes * sizeof(float));
    pipe_->InitBuffer(total_, kDots * kLanes * sizeof(float));
    pipe_->InitBuffer(sum_, kRow * sizeof(float));
  }

  __aicore__ inline void Process() {
    AscendC::Duplicate(total_.Get<float>(), 0.0F, kDots * kLanes);
    for (std::int64_t at = range_.begin; at < range_.end; at += kTile) {
      const std::uint32_t count = TileCount(range_.end - at, kTile);
      CopyIn(a_in_, a_, at, count);
      CopyIn(b_in_, b_, at, count);
      Compute(count);
    }
    AscendC::PipeBarrier<PIPE_V>();
    CopyOut();
  }

 private:
  static constexpr std::uint32_t kTile = 4096;
  static constexpr std::uint32_t kDots = 3;
  static constexpr std::uint32_t kRow = 8;  // float32 values in 32 bytes

  __aicore__ inline void Compute(std::uint32_t count) {
    AscendC::LocalTensor<T> a = a_in_.DeQue<T>();
    AscendC::LocalTensor<T> b = b_in_.DeQue<T>();
    AscendC::LocalTensor<float> wide = wide_.Get<float>();
    AscendC::LocalTensor<float> x = Widen(a, wide, count);
    AscendC::LocalTensor<float> y = Widen(b, wide[kTile], count);
    AscendC::LocalTensor<float> tile = tile_.Get<float>();
    AscendC::Duplicate(tile, 0.0F, kDots * kLanes);
    AddProduct(tile, x, y, count);
    AddProduct(tile[kLanes], x, x, count);
    AddProduct(tile[2 * kLanes], y, y, count);
    AscendC::LocalTensor<float> total = total_.Get<float>();
    AscendC::Add(total, total, tile, kDots * kLanes);
    AscendC::PipeBarrier<PIPE_V>();
    a_in_.FreeTensor(a);
    b_in_.FreeTensor(b);
  }

  __aicore__ inline void AddProduct(const AscendC::LocalTensor<float>& lanes, const AscendC::LocalTensor<float>& x,
                                    const AscendC::LocalTensor<float>& y, std::uint32_t count) {
    AscendC::LocalTensor<float> product = product_.Get<float>();
    AscendC::Mul(product, x, y, count);
    AscendC::PipeBarrier<PIPE_V>();
    AddLanes(lanes, product, count);
  }

  __aicore__ inline void CopyOut() {
    AscendC::LocalTensor<float> sum = sum_.Get<float>();
    AscendC::WholeReduceSum(sum, total_.Get<float>(), kLanes, kDots, 1, 1, 8);
    Wait<AscendC::HardEvent::V_MTE3>(*pipe_);
    Store(rows_, AscendC::GetBlockIdx() * kRow, sum, kDots);
  }

  AscendC::TPipe* pipe_;
  AscendC::TQue<AscendC::TPosition::VECIN, 1> a_in_, b_in_;
  AscendC::TBuf<AscendC::TPosition::VECCALC> wide_, product_, tile_, total_, sum_;
  AscendC::GlobalTensor<T> a_, b_;
  AscendC::GlobalTensor<float> rows_;
  Range range_;
};

// out = ca a + cb b, with c = 1 - <a,b> / (2 |.|^2), or 1 for a vector of norm 0. out may be a or b.
template <class T> class AdasumCombine {
 public:
  __aicore__ inline AdasumCombine() {}
  __aicore__ inline void Init(GM_ADDR a, GM_ADDR b, GM_ADDR dots, GM_ADDR out, std::int64_t n, std::int64_t per_core,
                              AscendC::TPipe* pipe) {
    pipe_ = pipe;
    a_.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(a), n);
    b_.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(b), n);
    dots_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(dots), 3);
    out_.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(out), n);
    range_ = MyRange(n, per_core);
    pipe_->InitBuffer(a_in_, 2, kTile * sizeof(T));
    pipe_->InitBuffer(b_in_, 2, kTile * sizeof(T));
    pipe_->InitBuffer(sum_out_, 2, kTile * sizeof(T));
    pipe_->InitBuffer(wide_, 2 * kTile * sizeof(float));
    pipe_->InitBuffer(scalars_, 32);
  }

  __aicore__ inline void Process() {
    AscendC::LocalTensor<float> d = scalars_.Get<float>();
    Load(d, dots_, 0, 3);
    Wait<AscendC::HardEvent::MTE2_S>(*pipe_);
    const float ab = d.GetValue(0);
    of_a_ = Coefficient(ab, d.GetValue(1));
    of_b_ = Coefficient(ab, d.GetValue(2));
    for (std::int64_t at = range_.begin; at < range_.end; at += kTile) {
      const std::uint32_t count = TileCount(range_.end - at, kTile);
      CopyIn(a_in_, a_, at, count);
      CopyIn(b_in_, b_, at, count);
      Compute(count);
      CopyOut(at, count);
    }
  }

 private:
  static constexpr std::uint32_t kTile = 4096;

  __aicore__ inline float Coefficient(float ab, float norm2) const {
    return norm2 == 0.0F ? 1.0F : 1.0F - 0.5F * (ab / norm2);
  }

  __aicore__ inline void Compute(std::uint32_t count) {
    AscendC::LocalTensor<T> a = a_in_.DeQue<T>();
    AscendC::LocalTensor<T> b = b_in_.DeQue<T>();
    AscendC::LocalTensor<float> x = wide_.Get<float>();
    AscendC::LocalTensor<float> y = x[kTile];
    AscendC::Muls(x, Widen(a, x, count), of_a_, count);
    AscendC::Muls(y, Widen(b, y, count), of_b_, count);
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::LocalTensor<T> sum = sum_out_.AllocTensor<T>();
    AscendC::LocalTensor<float> wide = Wide(sum, x);
    AscendC::Add(wide, x, y, count);
    Narrow(sum, wide, count);
    sum_out_.EnQue(sum);
    a_in_.FreeTensor(a);
    b_in_.FreeTensor(b);
    AscendC::PipeBarrier<PIPE_V>();
  }

  __aicore__ inline void CopyOut(std::int64_t at, std::uint32_t count) {
    AscendC::LocalTensor<T> sum = sum_out_.DeQue<T>();
    Store(out_, at, sum, count);
    sum_out_.FreeTensor(sum);
  }

  AscendC::TPipe* pipe_;
  AscendC::TQue<AscendC::TPosition::VECIN, 1> a_in_, b_in_;
  AscendC::TQue<AscendC::TPosition::VECOUT, 1> sum_out_;
  AscendC::TBuf<AscendC::TPosition::VECCALC> wide_, scalars_;
  AscendC::GlobalTensor<T> a_, b_, out_;
  AscendC::GlobalTensor<float> dots_;
  Range range_;
  float of_a_, of_b_;
};

}  // namespace boost_ext::ascend
