#include "ops/cuda/cuda_experts.h"

#include <algorithm>

#include "core/check.h"
#include "ops/cuda/cuda_check.h"
#include "ops/cuda/kernels/experts.h"
#include "ops/cuda/kernels/experts_plain.h"
#include "ops/cuda/kernels/experts_prefill.h"
#include "ops/cuda/kernels/moe_route.h"
#include "ops/cuda/kernels/route_plain.h"

namespace mimo::cuda {
std::vector<std::string> CudaExperts::describe() const {
  if (!fast_) return {"experts: plain fp32 arithmetic"};
  std::vector<std::string> out = {
      "experts: MXFP4 weights x BF16 activations (W4A16), streamed weights and mma, wgmma for many rows; "
      "routing in fp32"};
  if (many_ == ExpertActivations::kFp8) {
    out.push_back(
        "experts of many rows: MXFP4 weights x FP8 E4M3 activations (W4A8), a scale a token; W4A16 in layers "
        "with a row whose block scales are more than 2^14 apart");
  }
  return out;
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
  args.workspace = device_.grow(route_workspace_, bytes, bytes);
  if (rows * spec.top_k <= kRoutePlanPairs) {
    args.plan = plan_room(rows, spec.top_k, spec.experts, kExpertsGroupRows);
    args.group_rows = kExpertsGroupRows;
    planned_ids_ = ids;
    planned_rows_ = rows;
  }
  args.overlap = true;
  MIMO_CUDA(launch_route(args, device_.stream()));
}

MoePlan CudaExperts::plan_room(int rows, int top_k, int experts, int group_rows) {
  std::uint8_t* memory = plan_memory_.reserve(ops_, moe_plan_bytes(rows, top_k, experts, group_rows));
  plan_ = moe_plan_in(memory, rows, top_k, experts, group_rows);
  return plan_;
}

MoePlan CudaExperts::make_plan(int rows, int top_k, int experts, int group_rows, const std::int32_t* ids) {
  MoePlanArgs args;
  args.ids = ids;
  args.rows = rows;
  args.top_k = top_k;
  args.experts = experts;
  args.group_rows = group_rows;
  args.plan = plan_room(rows, top_k, experts, group_rows);
  MIMO_CUDA(launch_moe_plan(args, device_.stream()));
  return plan_;
}

void CudaExperts::run(const void* x, int rows, const CudaMlpBank& bank, int top_k, const std::int32_t* ids,
                      const float* weights, float* y) {
  if (rows == 0) return;
  if (bank.packed().gate_up != nullptr && ids != nullptr) {
    if (prefill_experts_pays(rows, top_k, bank.experts())) {
      run_many(x, rows, bank, top_k, ids, weights, y);
    } else {
      run_packed(x, rows, bank, top_k, ids, weights, y);
    }
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
    make_plan(rows, top_k, bank.experts(), kExpertsGroupRows, ids);
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
  args.tuning = experts_tuning(args.bank, rows);
  MIMO_CUDA(launch_experts(args, device_.stream()));
}

void CudaExperts::run_many(const void* x, int rows, const CudaMlpBank& bank, int top_k,
                           const std::int32_t* ids, const float* weights, float* y) {
  planned_ids_ = nullptr;
  PrefillExpertsArgs args;
  args.x = x;
  args.rows = rows;
  args.top_k = top_k;
  args.ids = ids;
  args.weights = weights;
  args.bank = bank.packed();
  if (args.bank.bases != nullptr && prefill_experts_fp8_pays(rows, top_k, bank.experts())) {
    args.activations = many_;
  }
  args.cut = prefill_experts_cut(args.activations, rows, top_k, bank.experts());
  args.plan = make_plan(rows, top_k, bank.experts(), prefill_group_rows(args.activations, args.cut), ids);
  args.y = y;
  args.workspace = workspace_.reserve(
      ops_, prefill_experts_workspace(args.activations, rows, top_k, bank.hidden(), bank.inter()));
  args.sm_count = device_.info().multiprocessors;
  MIMO_CUDA(launch_prefill_experts(args, device_.stream()));
}

}  // namespace mimo::cuda
