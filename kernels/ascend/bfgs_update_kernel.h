// B <- (I - rho s y^T) B (I - rho y s^T) + rho s s^T where y^T s > eps: csrc/ops/bfgs_update.h.
//
// One core; B lies in UB. In float32, where the CPU kernel computes in float64. The element (i, j) and its mirror are
// the same expression of the same numbers, so that a B that is symmetric to the last bit stays so.
#pragma once

#include "tile.h"

namespace boost_ext::ascend {

class BfgsUpdate {
 public:
  __aicore__ inline BfgsUpdate() {}
  static constexpr std::uint32_t kMaxRows = 192;  // what UB holds of B

  // updated: one float32, 1 where B was updated and 0 where not.
  __aicore__ inline void Init(GM_ADDR B, GM_ADDR s, GM_ADDR y, GM_ADDR updated, std::int64_t k, float eps,
                              AscendC::TPipe* pipe) {
    pipe_ = pipe;
    k_ = static_cast<std::uint32_t>(k);
    row_ = (k_ + 7) / 8 * 8;
    eps_ = eps;
    B_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(B), k * k);
    s_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(s), k);
    y_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(y), k);
    updated_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(updated), 1);
    pipe_->InitBuffer(matrix_, k_ * row_ * sizeof(float));
    pipe_->InitBuffer(vectors_, 6 * row_ * sizeof(float));
    pipe_->InitBuffer(sums_, 96);
    pipe_->InitBuffer(done_, 32);
  }

  __aicore__ inline void Process() {
    CopyIn();
    const float rho_inverse = Dot(y(), s(), 0);
    bool good = rho_inverse > eps_ && rho_inverse - rho_inverse == 0.0F;
    if (good) good = Compute(1.0F / rho_inverse);
    CopyOut(good);
  }

 private:
  __aicore__ inline AscendC::LocalTensor<float> matrix() { return matrix_.Get<float>(); }
  __aicore__ inline AscendC::LocalTensor<float> vector(std::uint32_t i) { return vectors_.Get<float>()[i * row_]; }
  __aicore__ inline AscendC::LocalTensor<float> s() { return vector(0); }
  __aicore__ inline AscendC::LocalTensor<float> y() { return vector(1); }

  __aicore__ inline void CopyIn() {
    const AscendC::DataCopyExtParams rows(static_cast<std::uint16_t>(k_), k_ * sizeof(float), 0, 0, 0);
    AscendC::DataCopyPad(matrix(), B_, rows, AscendC::DataCopyPadExtParams<float>());
    Load(s(), s_, 0, k_);
    Load(y(), y_, 0, k_);
    Wait<AscendC::HardEvent::MTE2_V>(*pipe_);
  }

  // By the vector unit; the scalar one waits for the sum, and so for what the vector unit waited for, too. Each sum has
  // a place of its own: 0 or 1.
  __aicore__ inline float Dot(const AscendC::LocalTensor<float>& a, const AscendC::LocalTensor<float>& b,
                              std::uint32_t place) {
    AscendC::LocalTensor<float> product = vector(3);
    AscendC::LocalTensor<float> sum = sums_.Get<float>()[8 * place];
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::Mul(product, a, b, k_);
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::ReduceSum(sum, product, sums_.Get<float>()[16], k_);
    Wait<AscendC::HardEvent::V_S>(*pipe_);
    return sum.GetValue(0);
  }

  __aicore__ inline bool Compute(float rho) {
    AscendC::LocalTensor<float> u = vector(2);  // B y, row by row, since B is symmetric
    AscendC::LocalTensor<float> product = vector(3);
    AscendC::Duplicate(u, 0.0F, k_);
    for (std::uint32_t j = 0; j < k_; ++j) {
      AscendC::PipeBarrier<PIPE_V>();
      AscendC::Muls(product, matrix()[j * row_], y().GetValue(j), k_);
      AscendC::PipeBarrier<PIPE_V>();
      AscendC::Add(u, u, product, k_);
    }
    const float ss = rho * (1.0F + rho * Dot(y(), u, 1));
    if (!(ss - ss == 0.0F)) return false;
    AscendC::LocalTensor<float> cross = vector(3);
    AscendC::LocalTensor<float> back = vector(4);
    AscendC::LocalTensor<float> square = vector(5);
    for (std::uint32_t i = 0; i < k_; ++i) {
      AscendC::LocalTensor<float> row = matrix()[i * row_];
      const float si = s().GetValue(i);
      AscendC::PipeBarrier<PIPE_V>();
      AscendC::Muls(cross, u, si, k_);
      AscendC::Muls(back, s(), u.GetValue(i), k_);
      AscendC::Muls(square, s(), si, k_);
      AscendC::PipeBarrier<PIPE_V>();
      AscendC::Add(cross, cross, back, k_);
      AscendC::Muls(square, square, ss, k_);
      AscendC::PipeBarrier<PIPE_V>();
      AscendC::Muls(cross, cross, rho, k_);
      AscendC::PipeBarrier<PIPE_V>();
      AscendC::Sub(row, row, cross, k_);
      AscendC::PipeBarrier<PIPE_V>();
      AscendC::Add(row, row, square, k_);
    }
    return true;
  }

  __aicore__ inline void CopyOut(bool good) {
    AscendC::LocalTensor<float> done = done_.Get<float>();
    AscendC::Duplicate(done, good ? 1.0F : 0.0F, 8);
    Wait<AscendC::HardEvent::V_MTE3>(*pipe_);
    Store(updated_, 0, done, 1);
    if (!good) return;
    const AscendC::DataCopyExtParams rows(static_cast<std::uint16_t>(k_), k_ * sizeof(float), 0, 0, 0);
    AscendC::DataCopyPad(B_, matrix(), rows);
  }

  AscendC::TPipe* pipe_;
  AscendC::TBuf<AscendC::TPosition::VECCALC> matrix_, vectors_, sums_, done_;
  AscendC::GlobalTensor<float> B_, s_, y_, updated_;
  std::uint32_t k_, row_;
  float eps_;
};

}  // namespace boost_ext::ascend
