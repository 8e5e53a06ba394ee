// Gated MLPs, plainly: reads weights as the checkpoint stores them and computes in fp32. The rule that the fast
// kernels are tested against, and the path for formats and shapes that they do not take.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "ops/cuda/kernels/views.h"

namespace mimo::cuda {

enum class MlpFormat : std::uint8_t {
  kF32,
  kBF16,
  kFp8,    // E4M3, fp32 scales on a 128 x 128 grid that multiply
  kMxfp4,  // E2M1 nibbles, low nibble = even column, E8M0 scale per 32 columns of a row
};

// One of gate, up and down of all experts, row-major [rows, cols] each, in device memory.
struct MlpWeights {
  MlpFormat format = MlpFormat::kBF16;
  const void* data = nullptr;      // expert 0
  std::int64_t expert_stride = 0;  // bytes from an expert to the next
  // kFp8: float, that of (r, c) is scales[r / 128 * scale_stride + c / 128]. kMxfp4: uint8, scales[r * scale_stride +
  // c / 32].
  const void* scales = nullptr;
  std::int64_t scale_expert_stride = 0;  // elements from an expert's scales to the next
  std::int64_t scale_stride = 0;         // elements from a scale row to the next
};

// y[row] += sum_k weights[row, k] * down[ids[row, k]](silu(gate(x[row])) * up(x[row])), k ascending.
struct PlainExpertsArgs {
  const void* x = nullptr;  // ActType [rows, hidden]
  ActType type = ActType::kBF16;
  int rows = 0;
  int hidden = 0;  // multiple of 32
  int inter = 0;   // multiple of 32
  int experts = 1;
  int top_k = 1;
  // [rows, top_k]; ids outside [0, experts) contribute nothing, and a row that has no others is not read. Both null:
  // the one expert of a dense MLP, weight 1 (top_k 1).
  const std::int32_t* ids = nullptr;
  const float* weights = nullptr;
  MlpWeights gate, up;         // [inter, hidden]
  MlpWeights down;             // [hidden, inter]
  float* y = nullptr;          // [rows, hidden], added to
  float* workspace = nullptr;  // plain_experts_workspace bytes
};

std::size_t plain_experts_workspace(int rows, int top_k, int inter);

// gate, up and down have the same format. Returns the launch error, if any.
cudaError_t launch_plain_experts(const PlainExpertsArgs& args, cudaStream_t stream);

}  // namespace mimo::cuda
