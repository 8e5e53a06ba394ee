#include "ops/cuda/kernels/moe_plan.cuh"

namespace mimo::cuda {
namespace {

constexpr int kThreads = 1024;

__global__ void __launch_bounds__(kThreads) plan_kernel(const MoePlanArgs args) {
  __shared__ MoePlanScratch scratch;
  build_moe_plan<kThreads>(args, scratch);
}

constexpr std::size_t rounded(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace

std::size_t moe_plan_bytes(int rows, int top_k, int experts, int group_rows) {
  const auto pairs = static_cast<std::size_t>(rows) * static_cast<std::size_t>(top_k);
  const auto groups = static_cast<std::size_t>(moe_max_groups(rows * top_k, experts, group_rows));
  return 256 + rounded(groups * sizeof(MoeGroup)) + rounded(groups * 4) + rounded(pairs * 4);
}

MoePlan moe_plan_in(void* memory, int rows, int top_k, int experts, int group_rows) {
  auto* at = static_cast<std::uint8_t*>(memory);
  MoePlan plan;
  plan.max_groups = moe_max_groups(rows * top_k, experts, group_rows);
  const auto groups = static_cast<std::size_t>(plan.max_groups);
  plan.group_count = reinterpret_cast<std::int32_t*>(at);
  plan.arrived = plan.group_count + 32;  // another cache line
  plan.groups = reinterpret_cast<MoeGroup*>(at += 256);
  plan.done = reinterpret_cast<std::int32_t*>(at += rounded(groups * sizeof(MoeGroup)));
  plan.slot_pair = reinterpret_cast<std::int32_t*>(at += rounded(groups * 4));
  return plan;
}

cudaError_t launch_moe_plan(const MoePlanArgs& args, cudaStream_t stream) {
  if (args.rows <= 0) return cudaSuccess;
  if (args.experts > kMoeMaxExperts || args.group_rows <= 0) return cudaErrorInvalidValue;
  plan_kernel<<<1, kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace mimo::cuda
