// Which kernel multiplies: chosen by format, shape and number of rows, with what they need beside their arguments.
#pragma once

#include <string>
#include <vector>

#include "ops/backend_array.h"
#include "ops/cuda/device.h"
#include "ops/cuda/kernels/activation_quant.h"
#include "ops/cuda/kernels/linear.h"
#include "ops/ops.h"

namespace mimo::cuda {

// Rows from which a matrix is multiplied by the kernel for many rows. Up to it a row has the same bits however many
// there are.
inline constexpr int kLargeLinearRows = 129;

class CudaLinear {
 public:
  // `ops` works on `device`; both must outlive it. `fast`: tensor cores of Hopper, with FP8 activations before FP8
  // weights (spec model 3.3); else plain fp32 arithmetic.
  CudaLinear(Ops& ops, Device& device, ActType type, bool fast)
      : ops_(ops), device_(device), type_(type), fast_(fast) {}

  std::vector<std::string> describe() const;

  // y (+)= x W^T; x [rows, weight.cols], y [rows, weight.rows].
  void run(const void* x, int rows, const LinearWeight& weight, void* y, ActType y_type, bool add);

  // What writes activations that may be multiplied by FP8 weights next, and quantises them in the same pass.
  void rms_norm(const float* x, int rows, const Vector& gain, float eps, void* out, std::size_t out_stride);
  void silu_mul(const void* gate_up, int rows, int inter, void* out);
  // Something else wrote to `out`.
  void written(const void* out) {
    if (quantised_ == out) quantised_ = nullptr;
  }

 private:
  bool takes_small(const LinearWeight& weight, int rows) const;
  bool takes_large(const LinearWeight& weight) const;
  QuantRows room(int rows, int cols);
  void quantise(const void* x, int rows, int cols);
  void* workspace(const LinearWeight& weight);

  Ops& ops_;
  Device& device_;
  ActType type_;
  bool fast_;
  BackendArray<std::uint8_t> quant_values_;
  BackendArray<float> quant_scales_;
  QuantRows quant_;
  const void* quantised_ = nullptr;  // the activations that quant_ holds
  int quantised_rows_ = 0;
  int quantised_cols_ = 0;
  // Used in turn: the next launch may begin before the last one has ended.
  std::unique_ptr<Buffer> workspaces_[2];
  int turn_ = 0;
};

}  // namespace mimo::cuda
