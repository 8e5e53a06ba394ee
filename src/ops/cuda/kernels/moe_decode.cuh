// The packed codes of moe_layout.h as operands.
#pragma once

#include "ops/cuda/kernels/moe_layout.h"
#include "ops/cuda/kernels/moe_ptx.cuh"

namespace mimo::cuda {

// The bf16 factors of one row of a tile: of blocks 0 and 2 of 32 columns in the halves of `even`, of 1 and 3 in `odd`.
struct MoeFactors {
  std::uint32_t even, odd;
};
__device__ inline MoeFactors moe_factors(std::uint32_t scales) {
  return {(scales << 7) & 0x7f807f80u, (scales >> 1) & 0x7f807f80u};
}

// A lane's word of a step in block `Block` as its A fragment, bf16 pairs of value * 2^-64. `low` and `high` are the factors
// of rows l / 4 and l / 4 + 8.
template <int Block>
__device__ void moe_decode(std::uint32_t q, MoeFactors low, MoeFactors high, std::uint32_t (&a)[4]) {
  constexpr std::uint32_t kMask = 0x81c081c0u;
  static_assert(kMoeRotate[1] == 4 && kMoeRotate[2] == 10 && kMoeRotate[3] == 14 && kMoeRotateLast == 6);
  const std::uint32_t s0 = Block % 2 == 0 ? low.even : low.odd, s1 = Block % 2 == 0 ? high.even : high.odd;
  // Where no bit wraps around a shift does for the rotation, and may run on another unit.
  a[0] = ptx::mul_bf16x2_half<Block / 2>(q & kMask, s0);
  a[1] = ptx::mul_bf16x2_half<Block / 2>((q << 4) & kMask, s1);
  a[2] = ptx::mul_bf16x2_half<Block / 2>(__funnelshift_l(q, q, 10) & kMask, s0);
  a[3] = ptx::mul_bf16x2_half<Block / 2>(
      ptx::masked_or(q << 6, 0x00400040u, __funnelshift_l(q, q, 14) & 0x81808180u), s1);
}

}  // namespace mimo::cuda
