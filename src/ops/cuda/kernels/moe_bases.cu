#include "ops/cuda/kernels/moe_bases.h"

namespace mimo::cuda {
namespace {

// A block looks at one row tile: thread (row, block of 32 columns of a tile).
__global__ void find_bases(std::uint8_t* packed, std::int64_t expert_bytes, int k_tiles, std::uint8_t* bases,
                           std::int64_t expert_bases, std::int32_t* wide) {
  std::uint8_t* tile =
      packed + blockIdx.y * expert_bytes + static_cast<std::int64_t>(blockIdx.x) * k_tiles * kMoeTileBytes;
  const int row = static_cast<int>(threadIdx.x) / 4, block = static_cast<int>(threadIdx.x) % 4;
  // Bits of a word that are magnitudes of the row.
  const std::uint32_t mask = row < 8 ? 0x71c071c0u : 0x061d061du;
  // Of column tile k: this thread's scale, and whether any weight of the block is not 0.
  const auto scale = [&](int k) -> std::uint8_t& {
    return tile[k * kMoeTileBytes + kMoeTileCodes + row % 8 * 8 + row / 8 * 4 + block];
  };
  const auto used = [&](int k) {
    const auto* lanes = reinterpret_cast<const uint2*>(tile + k * kMoeTileBytes) +
                        (block / 2 * 32 + row % 8 * 4) * 2 + block % 2;
    std::uint32_t any = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) any |= lanes[2 * i].x | lanes[2 * i].y;
    return (any & mask) != 0;
  };
  int most = 0, least = 255;
  for (int k = 0; k < k_tiles; ++k) {
    if (!used(k)) continue;
    const int s = scale(k);
    most = max(most, s);
    least = min(least, s);
  }
#pragma unroll
  for (int d = 1; d < 4; d *= 2) {
    most = max(most, __shfl_xor_sync(0xffffffffu, most, d));
    least = min(least, __shfl_xor_sync(0xffffffffu, least, d));
  }
  if (most == 0) most = kMoeScaleBias + 127;  // a row of zeros
  for (int k = 0; k < k_tiles; ++k) {
    if (!used(k)) scale(k) = static_cast<std::uint8_t>(most);
  }
  if (block != 0) return;
  bases[blockIdx.y * expert_bases + static_cast<std::int64_t>(blockIdx.x) * kMoeTileRows + row] =
      static_cast<std::uint8_t>(most);
  if (most - least > kMoeFp8Span) atomicAdd(wide, 1);
}

}  // namespace

cudaError_t launch_moe_bases(std::uint8_t* gate_up, std::uint8_t* down, int experts, int hidden, int inter,
                             std::uint8_t* bases, std::int32_t* wide, cudaStream_t stream) {
  if (!moe_shape_packs(hidden, inter)) return cudaErrorInvalidValue;
  const auto count = static_cast<unsigned>(experts);
  const std::int64_t each = 2 * inter + hidden;
  find_bases<<<dim3(static_cast<unsigned>(inter / 8), count), 64, 0, stream>>>(
      gate_up, static_cast<std::int64_t>(moe_gate_up_bytes(hidden, inter)), hidden / kMoeTileCols, bases,
      each, wide);
  find_bases<<<dim3(static_cast<unsigned>(hidden / kMoeTileRows), count), 64, 0, stream>>>(
      down, static_cast<std::int64_t>(moe_down_bytes(hidden, inter)), inter / kMoeTileCols, bases + 2 * inter,
      each, wide);
  return cudaGetLastError();
}

}  // namespace mimo::cuda
