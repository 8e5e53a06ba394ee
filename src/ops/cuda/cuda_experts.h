// Routing and the experts of a layer: which kernels run them, and the plan that both share.
#pragma once

#include <string>
#include <vector>

#include "ops/backend_array.h"
#include "ops/cuda/cuda_matrix.h"
#include "ops/cuda/device.h"
#include "ops/cuda/kernels/experts.h"
#include "ops/cuda/kernels/moe_plan.h"
#include "ops/ops.h"

namespace mimo::cuda {

class CudaExperts {
 public:
  // `ops` works on `device`; both must outlive it. `fast`: the kernels for Hopper; else plain fp32 arithmetic. `many`: of
  // steps with many rows, in layers whose weights allow it.
  CudaExperts(Ops& ops, Device& device, ActType type, bool fast,
              ExpertActivations many = ExpertActivations::kBF16)
      : ops_(ops), device_(device), type_(type), fast_(fast), many_(many) {}

  std::vector<std::string> describe() const;

  // As Ops::route; `router` [experts, hidden] in device memory.
  void route(const void* x, int rows, int hidden, const void* router, bool router_bf16, const RouteSpec& spec,
             std::int32_t* ids, float* weights);
  // As Ops::experts.
  void run(const void* x, int rows, const CudaMlpBank& bank, int top_k, const std::int32_t* ids,
           const float* weights, float* y);

 private:
  void run_packed(const void* x, int rows, const CudaMlpBank& bank, int top_k, const std::int32_t* ids,
                  const float* weights, float* y);
  void run_many(const void* x, int rows, const CudaMlpBank& bank, int top_k, const std::int32_t* ids,
                const float* weights, float* y);
  MoePlan make_plan(int rows, int top_k, int experts, int group_rows, const std::int32_t* ids);
  MoePlan plan_room(int rows, int top_k, int experts, int group_rows);

  Ops& ops_;
  Device& device_;
  ActType type_;
  bool fast_;
  ExpertActivations many_;
  std::unique_ptr<Buffer> route_workspace_;
  BackendArray<std::uint8_t> plan_memory_;
  BackendArray<std::uint8_t> workspace_;
  // The choice that the plan in plan_memory_ was made of, until it is used.
  const std::int32_t* planned_ids_ = nullptr;
  int planned_rows_ = 0;
  MoePlan plan_;
};

}  // namespace mimo::cuda
