#include "ops/cuda/cuda_experts.h"

#include <algorithm>
#include <stdexcept>

#include "core/check.h"
#include "ops/cuda/cuda_check.h"
#include "ops/cuda/kernels/experts.h"
#include "ops/cuda/kernels/experts_plain.h"
#include "ops/cuda/kernels/moe_route.h"
#include "ops/cuda/kernels/route_plain.h"

namespace mimo::cuda {

std::vector<std::string> CudaExperts::describe() const {
  if (!fast_) return {"experts: plain fp32 arithmetic"};
  return {"experts: MXFP4 weights x BF16 activations (W4A16), mma; routing in fp32, fused with the plan"};
}

void CudaExperts::route(const void* x, int rows, int hidden, const void* router, bool router_bf16,
                        const RouteSpec& spec, std::int32_t* ids, float* weights) {
  planned_ids_ = nullptr;
  if (rows == 0) return;
  const float* bias = spec.bias == nullptr ? nullptr : spec.bias->data();
  if (!fast_ || hidden % 8 != 0 || spec.experts > kMoeMaxExperts || spec.top_k > kMoeMaxTopK) {
    PlainRouteArgs args;
    args.x = x;
    args.type = type_;
    args.rows = rows;
    args.hidden = hidden;
    args.router = router;
    args.router_bf16 = router_bf16;
    args.bias = bias;
    args.experts = spec.experts;
    args.top_k = spec.top_k;
    args.normalize = spec.normalize;
    args.scale = spec.scale;
    args.ids = ids;
    args.weights = weights;
    MIMO_CHECK(args.experts <= kRouteMaxExperts && args.top_k <= kRouteMaxTopK, "{} experts, {} a token",
               args.experts, args.top_k);
    route_plain(args, device_.stream());
    return;
  }
  RouteArgs args;
  args.x = x;
  args.type = type_;
  args.rows = rows;
  args.hidden = hidden;
  args.router = router;
  args.router_type = router_bf16 ? ActType::kBF16 : ActType::kF32;
  args.experts = spec.experts;
  args.top_k = spec.top_k;
  args.bias = bias;
  args.normalize = spec.normalize;
  args.scale = spec.scale;
  args.ids = ids;
  args.weights = weights;
  const std::size_t bytes = route_workspace(rows, hidden, spec.experts);
  if (!route_workspace_ || route_workspace_->bytes() < bytes) {
    route_workspace_.reset();
    Result<std::unique_ptr<Buffer>> made = device_.allocate(bytes);
    if (!made) throw std::runtime_error(made.error().message);
    route_workspace_ = std::move(*made);
    MIMO_CUDA(cudaMemsetAsync(route_workspace_->data(), 0, bytes, device_.stream()));
  }
  args.workspace = route_workspace_->data();
  if (rows * spec.top_k <= kRoutePlanPairs) {
    args.plan = plan_room(rows, spec.top_k, spec.experts);
    args.group_rows = kExpertsGroupRows;
    planned_ids_ = ids;
    planned_rows_ = rows;
  }
  MIMO_CUDA(launch_route(args, device_.stream()));
}

MoePlan CudaExperts::plan_room(int rows, int top_k, int experts) {
  std::uint8_t* memory =
      plan_memory_.reserve(ops_, moe_plan_bytes(rows, top_k, experts, kExpertsGroupRows));
  plan_ = moe_plan_in(memory, rows, top_k, experts, kExpertsGroupRows);
  return plan_;
}

void CudaExperts::run(const void* x, int rows, const CudaMlpBank& bank, int top_k, const std::int32_t* ids,
                      const float* weights, float* y) {
  if (rows == 0) return;
  if (bank.packed().gate_up != nullptr && ids != nullptr) {
    for (int done = 0; done < rows; done += kExpertsRows) {
      const int count = std::min(rows - done, kExpertsRows);
      const std::size_t at = static_cast<std::size_t>(done) * static_cast<std::size_t>(bank.hidden());
      run_packed(static_cast<const std::byte*>(x) + at * 2, count, bank, top_k,
                 ids + static_cast<std::ptrdiff_t>(done) * top_k,
                 weights + static_cast<std::ptrdiff_t>(done) * top_k, y + at);
    }
    planned_ids_ = nullptr;
    return;
  }
  PlainExpertsArgs args;
  args.x = x;
  args.type = type_;
  args.rows = rows;
  args.hidden = bank.hidden();
  args.inter = bank.inter();
  args.experts = bank.experts();
  args.top_k = top_k;
  args.ids = ids;
  args.weights = weights;
  args.gate = bank.stored(0);
  args.up = bank.stored(1);
  args.down = bank.stored(2);
  args.y = y;
  args.workspace =
      reinterpret_cast<float*>(workspace_.reserve(ops_, plain_experts_workspace(rows, top_k, bank.inter())));
  MIMO_CUDA(launch_plain_experts(args, device_.stream()));
}

void CudaExperts::run_packed(const void* x, int rows, const CudaMlpBank& bank, int top_k,
                             const std::int32_t* ids, const float* weights, float* y) {
  if (planned_ids_ != ids || planned_rows_ != rows) {
    MoePlanArgs plan;
    plan.ids = ids;
    plan.rows = rows;
    plan.top_k = top_k;
    plan.experts = bank.experts();
    plan.group_rows = kExpertsGroupRows;
    plan.plan = plan_room(rows, top_k, bank.experts());
    MIMO_CUDA(launch_moe_plan(plan, device_.stream()));
  }
  planned_ids_ = nullptr;  // the plan is used up
  ExpertsArgs args;
  args.x = x;
  args.rows = rows;
  args.top_k = top_k;
  args.ids = ids;
  args.weights = weights;
  args.bank = bank.packed();
  args.plan = plan_;
  args.y = y;
  args.workspace = workspace_.reserve(ops_, experts_workspace(rows, top_k, bank.hidden(), bank.inter()));
  args.sm_count = device_.info().multiprocessors;
  args.overlap = true;
  args.tuning = experts_tuning(args.bank);
  MIMO_CUDA(launch_experts(args, device_.stream()));
}

}  // namespace mimo::cuda
