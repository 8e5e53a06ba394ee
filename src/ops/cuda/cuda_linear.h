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

  // Greedy choice instead of the products x W^T of lm_head: ids [rows], each the best among the first `count` outputs
  // of a row, the lowest on ties, -1 if any of those is not finite; probabilities [rows] (or null) its softmax
  // probability among them. takes_best: whether the weight has a kernel for it.
  bool takes_best(const LinearWeight& weight) const;
  void best(const void* x, int rows, const LinearWeight& weight, int count, std::int32_t* ids,
            float* probabilities);

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
  void* workspace(const LinearWeight& weight, bool best);

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
  std::unique_ptr<Buffer> workspace_;  // a launch writes to it only after the one before has ended
};

}  // namespace mimo::cuda
