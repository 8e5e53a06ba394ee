// The packed codes of moe_layout.h as E4M3 operands of wgmma.m64nNk32.
//
// A word's codes are looked up in the eight magnitudes of their block, scaled by 2^(6 - r), r = how many powers of two the
// block's scale is below the largest of its row (moe_bases.h): exact in E4M3 for r <= kMoeFp8Span. A step of 32 columns is
// two words. Of each 16 columns, byte i of lane l is column 2 (l % 4) + {8, 0, 9, 1}[i], so tokens lie in that order too.
#pragma once

#include "ops/cuda/kernels/moe_layout.h"
#include "ops/cuda/kernels/moe_ptx.cuh"

namespace mimo::cuda {

// Powers of two that the compiler does not know (kernel parameters): a shift and an or as one multiply-add, which has a unit
// of its own.
struct MoeShifts {
  std::uint32_t by2 = 4, by4 = 16, by6 = 64;
};

// Rows l / 4 and l / 4 + 8; bytes 0..7 of `low` and `high` are their magnitudes.
__device__ inline void moe_decode_fp8(std::uint32_t q, uint2 low, uint2 high, const MoeShifts& shift,
                                      std::uint32_t& a_low, std::uint32_t& a_high) {
  static_assert(kMoeRotate[1] == 4 && kMoeRotate[2] == 10 && kMoeRotate[3] == 14 && kMoeRotateLast == 6);
  const std::uint32_t z = __funnelshift_r(q, q, 10);
  // Nibbles of bytes 1 and 3 are the codes without signs.
  const std::uint32_t m_low = (z & 0x001c001cu) * shift.by6 + (z & 0x70007000u);
  const std::uint32_t m_high =
      (z & 0x07000700u) * shift.by4 + ((z & 0x00400040u) * shift.by2 + (q & 0x06000600u));
  const std::uint32_t v_low = ptx::select_bytes(low.x, low.y, __byte_perm(m_low, 0, 0x4413));
  const std::uint32_t v_high = ptx::select_bytes(high.x, high.y, __byte_perm(m_high, 0, 0x4413));
  a_low = ptx::masked_or(q, 0x80008000u, (q & 0x00200020u) * shift.by2 + v_low);
  a_high = (q & 0x08000800u) * shift.by4 + ((q & 0x00020002u) * shift.by6 + v_high);
}

}  // namespace mimo::cuda
