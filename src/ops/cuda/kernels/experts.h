// The routed experts of a layer for few rows (decode, verification): MXFP4 weights packed as moe_layout.h says, bf16
// activations, fp32 sums. Bound by reading the weights of the experts that the rows chose.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "ops/cuda/kernels/moe_layout.h"
#include "ops/cuda/kernels/moe_plan.h"

namespace mimo::cuda {

// What the rows are while they meet the weights, for many rows.
enum class ExpertActivations { kBF16, kFp8 };

// A layer's experts, expert e at e * moe_gate_up_bytes and e * moe_down_bytes.
struct PackedExperts {
  const std::uint8_t* gate_up = nullptr;
  const std::uint8_t* down = nullptr;
  int experts = 0;
  int hidden = 0;
  int inter = 0;
  const std::uint8_t* bases = nullptr;  // of moe_bases.h; null: the weights cannot be exact E4M3 values
};

// Rows of an expert that share one pass over its weights: what the plan's groups are cut to.
inline constexpr int kExpertsGroupRows = 8;

// How the kernel is cut; a row's bits do not depend on it.
struct ExpertsTuning {
  int tiles = 2;   // row tiles a warp holds
  int warps = 16;  // that multiply
  int stages = 0;  // of the ring of weights in shared memory; 0: as many as fit
};
ExpertsTuning experts_tuning(const PackedExperts& bank, int rows);

// y[row] += sum_k weights[row, k] * down[ids[row, k]](silu(gate(x[row])) * up(x[row])), k ascending. The product
// silu(gate) * up is rounded to bf16 and nothing else is. Each K sum is taken in the same order whatever the rows of the
// step are: a row's bits depend on that row alone.
struct ExpertsArgs {
  const void* x = nullptr;  // bf16 [rows, hidden]; rows without a valid id are not read
  int rows = 0;             // at most kExpertsRows
  int top_k = 0;
  const std::int32_t* ids = nullptr;  // [rows, top_k]; those outside [0, experts) contribute nothing
  const float* weights = nullptr;     // [rows, top_k]
  PackedExperts bank;
  MoePlan plan;               // of ids, of kExpertsGroupRows; its counters are 0 and are used up by the call
  float* y = nullptr;         // [rows, hidden], added to
  void* workspace = nullptr;  // experts_workspace bytes, 16-byte aligned
  int sm_count = 132;
  bool overlap =
      false;  // launched with programmatic stream serialization: starts while the kernel before it ends
  ExpertsTuning tuning;
};
inline constexpr int kExpertsRows = 1024;

std::size_t experts_workspace(int rows, int top_k, int hidden, int inter);
// One kernel; its blocks wait for each other: sm_count is at most the number of multiprocessors. cudaErrorInvalidValue: a shape that does not pack or does not fit.
cudaError_t launch_experts(const ExpertsArgs& args, cudaStream_t stream);

}  // namespace mimo::cuda
