// Routing, plainly: what choose_experts (ops.h) says, in fp32.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/kernels/views.h"

namespace mimo::cuda {

struct PlainRouteArgs {
  const void* x = nullptr;  // ActType [rows][hidden]
  ActType type = ActType::kBF16;
  int rows = 0;
  int hidden = 0;
  const void* router = nullptr;  // [experts][hidden], bf16 or f32
  bool router_bf16 = false;
  const float* bias = nullptr;  // [experts] or null: joins the choice, not the weight
  int experts = 0;              // at most kRouteMaxExperts
  int top_k = 0;                // at most kRouteMaxTopK
  bool normalize = true;
  float scale = 1;
  std::int32_t* ids = nullptr;  // [rows][top_k], ascending
  float* weights = nullptr;     // [rows][top_k]
};

inline constexpr int kRouteMaxExperts = 1024;
inline constexpr int kRouteMaxTopK = 32;

void route_plain(const PlainRouteArgs& args, cudaStream_t stream);

}  // namespace mimo::cuda
