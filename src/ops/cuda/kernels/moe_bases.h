// What the kernels with E4M3 weights (experts_fp8.h) need beside the packed weights: the largest block scale of each row.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "ops/cuda/kernels/moe_layout.h"

namespace mimo::cuda {

// Scales of a row's blocks that are this many powers of two apart still make exact E4M3 weights.
inline constexpr int kMoeFp8Span = 14;

// A byte for each row of packed gate_up, then of down, of each expert.
constexpr std::size_t moe_bases_bytes(int experts, int hidden, int inter) {
  return static_cast<std::size_t>(experts) * static_cast<std::size_t>(2 * inter + hidden);
}

// Fills `bases` (moe_bases_bytes) and adds to *wide how many rows spread wider than kMoeFp8Span: if there are any, the
// kernels with E4M3 weights would be inexact. Scales of blocks that are all zeros are overwritten (the weights stay zeros).
cudaError_t launch_moe_bases(std::uint8_t* gate_up, std::uint8_t* down, int experts, int hidden, int inter,
                             std::uint8_t* bases, std::int32_t* wide, cudaStream_t stream);

}  // namespace mimo::cuda
