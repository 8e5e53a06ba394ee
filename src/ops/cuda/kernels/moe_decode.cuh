// The packed codes of moe_layout.h as operands.
#pragma once

#include "ops/cuda/kernels/moe_layout.h"
#include "ops/cuda/kernels/moe_ptx.cuh"

namespace mimo::cuda {

// The factors of a lane's two rows (l / 4, l / 4 + 8) in block `block` of 32 columns, twice each; x and y of `scales` are
// the rows' four scale bytes.
struct MoeFactors {
  std::uint32_t low, high;
};
__device__ inline MoeFactors moe_factors(uint2 scales, int block) {
  const std::uint32_t pick = 0x4040u | static_cast<std::uint32_t>(block) | static_cast<std::uint32_t>(block) << 8;
  return {__byte_perm(scales.x, 0, pick) << 7, __byte_perm(scales.y, 0, pick) << 7};
}

// A lane's word of one step as its A fragment, bf16 pairs of value * 2^-64.
__device__ inline void moe_decode(std::uint32_t q, MoeFactors factors, std::uint32_t (&a)[4]) {
  constexpr std::uint32_t kMask = 0x81c081c0u;
  static_assert(kMoeRotate[1] == 4 && kMoeRotate[2] == 10 && kMoeRotate[3] == 14 && kMoeRotateLast == 6);
  // Where no bit wraps around a shift does for the rotation, and may run on another unit.
  a[0] = ptx::mul_bf16x2(q & kMask, factors.low);
  a[1] = ptx::mul_bf16x2((q << 4) & kMask, factors.high);
  a[2] = ptx::mul_bf16x2(__funnelshift_l(q, q, 10) & kMask, factors.low);
  a[3] = ptx::mul_bf16x2((__funnelshift_l(q, q, 14) & 0x81808180u) | ((q << 6) & 0x00400040u), factors.high);
}

}  // namespace mimo::cuda
