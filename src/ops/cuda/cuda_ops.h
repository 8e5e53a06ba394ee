// The CUDA backend: weights in checkpoint precision in device memory, one stream, every operation a few launches.
//
// Rounding inside operations (all else is fp32); in the exact mode only the storage of keys and values rounds:
//   activations      BF16
//   FP8 matrices     weights exact; activations FP8, a scale per row and 128 columns
//   MXFP4 experts    weights exact; the product of gate and up rounded to an activation. With fp8_experts, where a
//                    step has 48 rows an expert or more: rows and that product FP8, a scale a row
//   router           fp32 arithmetic on exact weights
//   attention        softmax weights BF16, on stored keys and values
#pragma once

#include <memory>
#include <vector>

#include "core/result.h"
#include "ops/attention_select.h"
#include "ops/ops.h"

namespace mimo {

struct CudaOptions {
  int device = 0;
  bool exact = false;  // fp32 activations
  // FP8 activations before MXFP4 experts in steps of many rows (W4A8); else BF16 (W4A16). Not with `exact`.
  bool fp8_experts = false;
  AttentionChoices attention = {};
  // Calls that the model will make, as far as they are known (device and activations are filled in): their kernels are
  // chosen at once, so that what does not run is refused before weights are loaded.
  std::vector<AttentionQuery> attention_calls = {};
};

// Fails where there is no such device, no driver, or a GPU that this binary has no kernels for; where an attention
// kernel that was asked for does not run; and in a binary that was built without CUDA.
Result<std::unique_ptr<Ops>> make_cuda_ops(const CudaOptions& options);

// GPUs that this binary could try; 0 also without a driver.
int count_cuda_devices();

}  // namespace mimo
