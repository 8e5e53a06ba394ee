// The routed experts of a layer for many rows: the same packed weights as experts.h as a grouped GEMM on wgmma, bf16
// activations, fp32 sums.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "ops/cuda/kernels/experts.h"

namespace mimo::cuda {

// Rows of an expert that share one tile: what the plan's groups are cut to.
inline constexpr int kPrefillGroupRows = 128;

// As ExpertsArgs. silu(gate) * up and each expert's weighted output are rounded to bf16. A row's bits depend on that row
// alone, and differ in rounding from those of launch_experts.
struct PrefillExpertsArgs {
  const void* x = nullptr;  // bf16 [rows, hidden]; rows without a valid id are not read
  int rows = 0;
  int top_k = 0;
  const std::int32_t* ids = nullptr;  // [rows, top_k]; those outside [0, experts) contribute nothing
  const float* weights = nullptr;     // [rows, top_k]
  PackedExperts bank;
  MoePlan plan;               // of ids, with groups of kPrefillGroupRows
  float* y = nullptr;         // [rows, hidden], added to
  void* workspace = nullptr;  // prefill_experts_workspace bytes, 16-byte aligned
  int sm_count = 132;
};

std::size_t prefill_experts_workspace(int rows, int top_k, int hidden, int inter);
cudaError_t launch_prefill_experts(const PrefillExpertsArgs& args, cudaStream_t stream);

}  // namespace mimo::cuda
