// The routed experts of a layer for many rows: the same packed weights as experts.h as a grouped GEMM on wgmma, fp32 sums.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "ops/cuda/kernels/experts.h"

namespace mimo::cuda {

// As ExpertsArgs. silu(gate) * up and each expert's weighted output are rounded to bf16. A row's bits depend on that row
// alone, and differ in rounding from those of launch_experts.
//
// With ExpertActivations::kFp8 (W4A8) rows of x, and of silu(gate) * up, are quantised to E4M3 with one scale each, the
// largest value becoming 448; weights are exact E4M3 values times a power of two a row (bank.bases is not null); sums are
// what the tensor cores keep of fp32.
struct PrefillExpertsArgs {
  const void* x = nullptr;  // bf16 [rows, hidden]; rows without a valid id do not matter
  int rows = 0;
  int top_k = 0;
  const std::int32_t* ids = nullptr;  // [rows, top_k]; those outside [0, experts) contribute nothing
  const float* weights = nullptr;     // [rows, top_k]
  PackedExperts bank;
  ExpertActivations activations = ExpertActivations::kBF16;
  int cut = 0;                // of prefill_experts_cut
  MoePlan plan;               // of ids, with groups of prefill_group_rows(activations, cut)
  float* y = nullptr;         // [rows, hidden], added to
  void* workspace = nullptr;  // prefill_experts_workspace bytes, 16-byte aligned
  int sm_count = 132;
};

// Whether this is faster than reading an expert's weights once for every kExpertsGroupRows of its rows (launch_experts).
bool prefill_experts_pays(int rows, int top_k, int experts);
// Whether E4M3 activations are then faster than bf16 ones.
bool prefill_experts_fp8_pays(int rows, int top_k, int experts);
// Which of the kernels fits the usual number of rows of an expert; bits do not depend on it.
int prefill_experts_cut(ExpertActivations activations, int rows, int top_k, int experts);
inline constexpr int kPrefillCuts = 3;  // of each kind
// Rows of an expert that share one tile: what the plan's groups are cut to.
int prefill_group_rows(ExpertActivations activations, int cut);
std::size_t prefill_experts_workspace(ExpertActivations activations, int rows, int top_k, int hidden,
                                      int inter);
cudaError_t launch_prefill_experts(const PrefillExpertsArgs& args, cudaStream_t stream);

}  // namespace mimo::cuda
