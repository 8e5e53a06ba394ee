// Which rows each expert of a step has: the routing result sorted by expert, cut into groups of rows of one expert.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace mimo::cuda {

// Up to group_rows rows of one expert. An expert with more has several.
struct MoeGroup {
  std::int32_t expert;
  std::int32_t begin;  // of its slots
  std::int32_t count;
  std::int32_t pad;
};

// Device arrays. A pair is row * top_k + k; a slot is the place of a pair in expert order.
struct MoePlan {
  std::int32_t* group_count = nullptr;  // [1]
  MoeGroup* groups = nullptr;           // [max_groups]
  std::int32_t* done = nullptr;         // [max_groups], 0: what the expert kernels count in
  std::int32_t* arrived = nullptr;      // [1], 0: likewise
  std::int32_t* slot_pair = nullptr;    // [pairs]
  int max_groups = 0;
};

inline constexpr int kMoeMaxExperts = 512;
inline constexpr int kMoeMaxTopK = 16;

// An expert with more than group_rows rows has groups of about the same size.
constexpr int moe_max_groups(int pairs, int experts, int group_rows) {
  const int whole = experts + pairs / group_rows;
  return pairs < whole ? pairs : whole;
}
std::size_t moe_plan_bytes(int rows, int top_k, int experts, int group_rows);
// The arrays inside `memory` (moe_plan_bytes, 16-byte aligned).
MoePlan moe_plan_in(void* memory, int rows, int top_k, int experts, int group_rows);

// ids [rows, top_k]; those outside [0, experts) are left out.
struct MoePlanArgs {
  const std::int32_t* ids = nullptr;
  int rows = 0;
  int top_k = 0;
  int experts = 0;
  int group_rows = 0;
  MoePlan plan;
};
cudaError_t launch_moe_plan(const MoePlanArgs& args, cudaStream_t stream);

}  // namespace mimo::cuda
