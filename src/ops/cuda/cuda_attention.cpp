#include "ops/cuda/cuda_attention.h"

#include <stdexcept>

#include "ops/cuda/cuda_check.h"
#include "ops/cuda/kernels/attention_decode.h"
#include "ops/cuda/kernels/attention_plain.h"
#include "ops/cuda/kernels/attention_prefill.h"

namespace mimo::cuda {

std::vector<std::string> CudaAttention::describe() const {
  if (!fast_) return {"attention: plain fp32 arithmetic, any shape"};
  return {
      "attention up to 16 rows a sequence: split-KV on tensor cores (Hopper), one launch",
      "attention of longer chunks: wgmma with TMA (Hopper); heads other than 192/128: plain fp32 arithmetic"};
}

void CudaAttention::run(const AttentionArgs& args) {
  if (args.sequences.total_rows == 0) return;
  if (fast_ && args.sequences.max_rows <= kDecodeMaxRows && attention_decode_supports(args)) {
    attention_decode(args, decode_workspace(args), device_.stream(), Overlap::kLaunch);
  } else if (fast_ && attention_prefill_supports(args)) {
    void* plan = prefill_plan(args);
    attention_prefill_plan(args, plan, device_.stream());
    attention_prefill(args, plan, device_.stream());
  } else {
    attention_plain(args, device_.stream());
  }
}

void* CudaAttention::decode_workspace(const AttentionArgs& args) {
  const std::size_t bytes = attention_decode_workspace(args);
  if (!workspace_ || workspace_->bytes() < bytes) {
    workspace_.reset();
    Result<std::unique_ptr<Buffer>> made = device_.allocate(bytes);
    if (!made) throw std::runtime_error(made.error().message);
    workspace_ = std::move(*made);
    MIMO_CUDA(cudaMemsetAsync(workspace_->data(), 0, kDecodeBarrierBytes, device_.stream()));
  }
  return workspace_->data();
}

void* CudaAttention::prefill_plan(const AttentionArgs& args) {
  const std::size_t bytes = attention_prefill_workspace(args);
  if (!plan_ || plan_->bytes() < bytes) {
    plan_.reset();
    Result<std::unique_ptr<Buffer>> made = device_.allocate(bytes);
    if (!made) throw std::runtime_error(made.error().message);
    plan_ = std::move(*made);
  }
  return plan_->data();
}

}  // namespace mimo::cuda
