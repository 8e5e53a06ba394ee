// Weights in device memory: dense matrices in the one layout of linear.h, routers and experts.
#pragma once

#include <memory>
#include <vector>

#include "core/weight_view.h"
#include "ops/cuda/device.h"
#include "ops/cuda/kernels/experts.h"
#include "ops/cuda/kernels/experts_plain.h"
#include "ops/cuda/kernels/linear.h"
#include "ops/ops.h"

namespace mimo::cuda {

// A dense matrix: F32, BF16 or FP8. MXFP4 is refused: only experts are stored so.
class CudaMatrix final : public Matrix {
 public:
  static Result<std::unique_ptr<Matrix>> pack(const WeightView& view, Device& device);
  // Several matrices of one format and width, one below the other.
  static Result<std::unique_ptr<CudaMatrix>> stack(std::span<const WeightView* const> views, Device& device);

  std::int64_t rows() const override { return weight_.rows; }
  std::int64_t cols() const override { return weight_.cols; }
  std::size_t bytes() const override { return data_->bytes() + (scales_ ? scales_->bytes() : 0); }
  const LinearWeight& weight() const { return weight_; }

 private:
  LinearWeight weight_;
  std::unique_ptr<Buffer> data_;
  std::unique_ptr<Buffer> scales_;
};

// Gated MLPs. One expert that is not MXFP4 is a pair of dense matrices; others lie as the checkpoint has them.
class CudaMlpBank final : public MlpBank {
 public:
  // `packed`: MXFP4 experts are repacked for the kernels of experts.h where their shape allows it.
  static Result<std::unique_ptr<MlpBank>> pack(std::span<const MlpViews> experts, bool packed,
                                               Device& device);

  int experts() const override { return experts_; }
  std::size_t bytes() const override { return bytes_; }
  std::size_t expert_bytes() const override { return bytes_ / static_cast<std::size_t>(experts_); }

  int hidden() const { return hidden_; }
  int inter() const { return inter_; }
  // Null unless it is one dense MLP: gate above up, and down.
  const CudaMatrix* gate_up() const { return gate_up_.get(); }
  const CudaMatrix* down() const { return down_.get(); }
  const PackedExperts& packed() const {
    return packed_;
  }  // gate_up is null: they lie as the checkpoint has them
  const MlpWeights& stored(int part) const {
    return stored_[static_cast<std::size_t>(part)];
  }  // gate, up, down

 private:
  Status pack_dense(const MlpViews& views, Device& device);
  Status pack_experts(std::span<const MlpViews> experts, Device& device);
  Status pack_part(std::span<const MlpViews> experts, int part, Device& device);

  int experts_ = 0;
  int hidden_ = 0;
  int inter_ = 0;
  std::size_t bytes_ = 0;
  std::unique_ptr<CudaMatrix> gate_up_;
  std::unique_ptr<CudaMatrix> down_;
  std::vector<std::unique_ptr<Buffer>> memory_;
  MlpWeights stored_[3];
  PackedExperts packed_;
};

}  // namespace mimo::cuda
