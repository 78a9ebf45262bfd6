// out[r] (+)= sum_i P[r, column + i] * g[i]: csrc/ops/pca_project.h, one tensor of the list a launch.
//
// The elements are split over the cores. A tile of g is loaded once and meets its piece of up to 64 rows of P; each
// product is summed in 64 lanes, and the lanes of all tiles of a row are added. Each core leaves one row of sums, and a
// second launch adds them in the order of the cores: the same bits in every run.
#pragma once

#include "tile.h"

namespace boost_ext::ascend {

template <class T> class PcaProject {
 public:
  __aicore__ inline PcaProject() {}
  // columns: of P, whose rows are k. rows: k float32 a core, each core's behind k rounded up to eights of the former.
  __aicore__ inline void Init(GM_ADDR P, GM_ADDR grad, GM_ADDR rows, std::int64_t k, std::int64_t columns,
                              std::int64_t column, std::int64_t n, std::int64_t per_core, AscendC::TPipe* pipe) {
    pipe_ = pipe;
    P_.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(P), k * columns);
    g_.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(grad), n);
    k_ = k;
    columns_ = columns;
    column_ = column;
    row_ = (k + 7) / 8 * 8;
    rows_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(rows), (AscendC::GetBlockNum() - 1) * row_ + k);
    range_ = MyRange(n, per_core);
    pipe_->InitBuffer(g_in_, 2, kTile * sizeof(T));
    pipe_->InitBuffer(P_in_, 2, kTile * sizeof(T));
    pipe_->InitBuffer(wide_, 2 * kTile * sizeof(float));
    pipe_->InitBuffer(product_, kTile * sizeof(float));
    pipe_->InitBuffer(lanes_, kLanes * sizeof(float));
    pipe_->InitBuffer(total_, kRows * kLanes * sizeof(float));
    pipe_->InitBuffer(sums_, kRows * sizeof(float));
  }

  __aicore__ inline void Process() {
    for (std::int64_t first = 0; first < k_; first += kRows) Rows(first, TileCount(k_ - first, kRows));
  }

 private:
  static constexpr std::uint32_t kTile = 4096;
  static constexpr std::uint32_t kRows = 64;

  __aicore__ inline void Rows(std::int64_t first, std::uint32_t rows) {
    AscendC::LocalTensor<float> total = total_.Get<float>();
    AscendC::Duplicate(total, 0.0F, rows * kLanes);
    for (std::int64_t at = range_.begin; at < range_.end; at += kTile) {
      const std::uint32_t count = TileCount(range_.end - at, kTile);
      CopyIn(g_in_, g_, at, count);
      AscendC::LocalTensor<T> g = g_in_.template DeQue<T>();
      AscendC::LocalTensor<float> x = Widen(g, wide_.Get<float>(), count);
      for (std::uint32_t r = 0; r < rows; ++r) {
        CopyIn(P_in_, P_, (first + r) * columns_ + column_ + at, count);
        Compute(x, total[r * kLanes], count);
      }
      g_in_.FreeTensor(g);
    }
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::LocalTensor<float> sums = sums_.Get<float>();
    AscendC::WholeReduceSum(sums, total, kLanes, rows, 1, 1, 8);
    Wait<AscendC::HardEvent::V_MTE3>(*pipe_);
    Store(rows_, AscendC::GetBlockIdx() * row_ + first, sums, rows);
    AscendC::PipeBarrier<PIPE_ALL>();
  }

  __aicore__ inline void Compute(const AscendC::LocalTensor<float>& g, const AscendC::LocalTensor<float>& total,
                                 std::uint32_t count) {
    AscendC::LocalTensor<T> p = P_in_.template DeQue<T>();
    AscendC::LocalTensor<float> product = product_.Get<float>();
    AscendC::LocalTensor<float> lanes = lanes_.Get<float>();
    AscendC::Duplicate(lanes, 0.0F, kLanes);
    AscendC::Mul(product, Widen(p, wide_.Get<float>()[kTile], count), g, count);
    AscendC::PipeBarrier<PIPE_V>();
    AddLanes(lanes, product, count);
    AscendC::Add(total, total, lanes, kLanes);
    AscendC::PipeBarrier<PIPE_V>();
    P_in_.FreeTensor(p);
  }

  AscendC::TPipe* pipe_;
  AscendC::TQue<AscendC::TPosition::VECIN, 1> g_in_, P_in_;
  AscendC::TBuf<AscendC::TPosition::VECCALC> wide_, product_, lanes_, total_, sums_;
  AscendC::GlobalTensor<T> P_, g_;
  AscendC::GlobalTensor<float> rows_;
  std::int64_t k_, columns_, column_, row_;
  Range range_;
};

}  // namespace boost_ext::ascend
