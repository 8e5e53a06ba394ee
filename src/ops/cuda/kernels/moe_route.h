// The router of an expert layer: logits, sigmoid, choice of experts and their weights (choose_experts of ops.h), and the
// plan of the expert kernels.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "ops/cuda/kernels/moe_plan.h"
#include "ops/cuda/kernels/views.h"

namespace mimo::cuda {

// Products of bf16 operands are exact, fp32 operands are cut into three bf16 parts that add up to them; sums are fp32,
// in an order that depends on `hidden` alone. So a row's choice does not depend on other rows.
struct RouteArgs {
  const void* x = nullptr;  // ActType [rows, hidden]
  ActType type = ActType::kBF16;
  int rows = 0;
  int hidden = 0;                // multiple of 8
  const void* router = nullptr;  // [experts, hidden], bf16 or fp32
  ActType router_type = ActType::kF32;
  int experts = 0;              // at most kMoeMaxExperts
  int top_k = 0;                // at most kMoeMaxTopK and experts
  const float* bias = nullptr;  // [experts] or null; joins the choice, not the weight
  bool normalize = true;        // weights divided by (sum + 1e-20)
  float scale = 1.0f;
  // [rows] or null; a row with a negative entry is padding: it gets ids -1 and weights 0, and x of it does not matter.
  const std::int32_t* row_sequence = nullptr;
  std::int32_t* ids = nullptr;  // [rows, top_k], ascending within a row
  float* weights = nullptr;     // [rows, top_k]
  void* workspace = nullptr;    // route_workspace bytes, 16-byte aligned, zero before the first call
  // Set plan.groups to have the plan of the same ids made by the same kernel: rows * top_k <= kRoutePlanPairs.
  MoePlan plan;
  int group_rows = 0;
  bool overlap =
      false;  // launched with programmatic stream serialization: starts while the kernel before it ends
};
inline constexpr int kRoutePlanPairs = 2048;

std::size_t route_workspace(int rows, int hidden, int experts);
cudaError_t launch_route(const RouteArgs& args, cudaStream_t stream);

}  // namespace mimo::cuda
