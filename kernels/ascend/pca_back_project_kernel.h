// out_j[i] = sum_r P[r, column + i] * vector_j[r] for one or two vectors: csrc/ops/pca_back_project.h, one tensor of
// each list a launch.
//
// Each tile of P is loaded once and serves both vectors; sums over the rows in their order. By Muls and Add, which
// round once each: CANN's documentation calls them the more accurate way beside Axpy.
#pragma once

#include "tile.h"

namespace boost_ext::ascend {

template <class T, bool pair> class PcaBackProject {
 public:
  __aicore__ inline PcaBackProject() {}
  static constexpr std::uint32_t kMaxRows = 2048;  // what UB holds of the vectors

  __aicore__ inline void Init(GM_ADDR P, GM_ADDR vector0, GM_ADDR vector1, GM_ADDR out0, GM_ADDR out1, std::int64_t k,
                              std::int64_t columns, std::int64_t column, std::int64_t n, std::int64_t per_core,
                              AscendC::TPipe* pipe) {
    pipe_ = pipe;
    P_.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(P), k * columns);
    v0_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(vector0), k);
    out0_.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(out0), n);
    k_ = static_cast<std::uint32_t>(k);
    columns_ = columns;
    column_ = column;
    range_ = MyRange(n, per_core);
    pipe_->InitBuffer(P_in_, 2, kTile * sizeof(T));
    pipe_->InitBuffer(first_, 2, kTile * sizeof(T));
    pipe_->InitBuffer(wide_, (kProduct + 1) * kTile * sizeof(float));
    pipe_->InitBuffer(vectors_, 2 * kMaxRows * sizeof(float));
    if constexpr (pair) {
      v1_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(vector1), k);
      out1_.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(out1), n);
      pipe_->InitBuffer(second_, 2, kTile * sizeof(T));
    }
  }

  __aicore__ inline void Process() {
    AscendC::LocalTensor<float> v = vectors_.Get<float>();
    Load(v, v0_, 0, k_);
    if constexpr (pair) Load(v[kMaxRows], v1_, 0, k_);
    Wait<AscendC::HardEvent::MTE2_S>(*pipe_);
    for (std::int64_t at = range_.begin; at < range_.end; at += kTile) {
      const std::uint32_t count = TileCount(range_.end - at, kTile);
      AscendC::LocalTensor<T> x = first_.template AllocTensor<T>();
      AscendC::LocalTensor<T> y = x;
      if constexpr (pair) y = second_.template AllocTensor<T>();
      Compute(at, x, y, count);
      CopyOut(first_, out0_, x, at, count);
      if constexpr (pair) CopyOut(second_, out1_, y, at, count);
    }
  }

 private:
  static constexpr std::uint32_t kTile = 4096;
  // Behind a row and the sums, in float32, where they do not lie in the tiles that come and leave.
  static constexpr std::uint32_t kProduct = kIsFloat<T> ? 0 : (pair ? 3 : 2);

  __aicore__ inline void Compute(std::int64_t at, const AscendC::LocalTensor<T>& x, const AscendC::LocalTensor<T>& y,
                                 std::uint32_t count) {
    AscendC::LocalTensor<float> wide = wide_.Get<float>();
    AscendC::LocalTensor<float> v = vectors_.Get<float>();
    AscendC::LocalTensor<float> x_sum = Wide(x, wide[kIsFloat<T> ? 0 : kTile]);
    AscendC::LocalTensor<float> y_sum = x_sum;
    AscendC::LocalTensor<float> product = wide[kProduct * kTile];
    AscendC::Duplicate(x_sum, 0.0F, count);
    if constexpr (pair) {
      y_sum = Wide(y, wide[kIsFloat<T> ? 0 : 2 * kTile]);
      AscendC::Duplicate(y_sum, 0.0F, count);
    }
    for (std::uint32_t r = 0; r < k_; ++r) {
      CopyIn(P_in_, P_, r * columns_ + column_ + at, count);
      AscendC::LocalTensor<T> p = P_in_.template DeQue<T>();
      AscendC::LocalTensor<float> row = Widen(p, wide, count);
      AscendC::Muls(product, row, v.GetValue(r), count);
      AscendC::PipeBarrier<PIPE_V>();
      AscendC::Add(x_sum, x_sum, product, count);
      if constexpr (pair) {
        AscendC::Muls(row, row, v.GetValue(kMaxRows + r), count);
        AscendC::PipeBarrier<PIPE_V>();
        AscendC::Add(y_sum, y_sum, row, count);
      }
      AscendC::PipeBarrier<PIPE_V>();
      P_in_.FreeTensor(p);
    }
    Narrow(x, x_sum, count);
    if constexpr (pair) Narrow(y, y_sum, count);
    AscendC::PipeBarrier<PIPE_V>();
  }

  __aicore__ inline void CopyOut(AscendC::TQue<AscendC::TPosition::VECOUT, 1>& queue,
                                 const AscendC::GlobalTensor<T>& out, const AscendC::LocalTensor<T>& x, std::int64_t at,
                                 std::uint32_t count) {
    queue.EnQue(x);
    AscendC::LocalTensor<T> ready = queue.template DeQue<T>();
    Store(out, at, ready, count);
    queue.FreeTensor(ready);
  }

  AscendC::TPipe* pipe_;
  AscendC::TQue<AscendC::TPosition::VECIN, 1> P_in_;
  AscendC::TQue<AscendC::TPosition::VECOUT, 1> first_, second_;
  AscendC::TBuf<AscendC::TPosition::VECCALC> wide_, vectors_;
  AscendC::GlobalTensor<T> P_, out0_, out1_;
  AscendC::GlobalTensor<float> v0_, v1_;
  std::int64_t columns_, column_;
  std::uint32_t k_;
  Range range_;
};

}  // namespace boost_ext::ascend
