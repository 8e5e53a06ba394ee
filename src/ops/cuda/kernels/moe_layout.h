// How MXFP4 expert weights lie in device memory for the kernels of experts.h.
//
// A matrix [rows, cols] is cut into tiles of 16 rows x 128 columns, [rows / 16][cols / 128][kTileBytes]. A tile holds
// the codes, [2 halves of 64 columns][32 lanes][4 steps of 16 columns][32 bits], then the scales, [8 row pairs][2 rows]
// [4 blocks of 32 columns]. The 32 bits of lane l and step s are that lane's A fragment of mma.m16n8k16: rows l / 4 and
// l / 4 + 8, columns 2 (l % 4) + {0, 1, 8, 9}, so one 16-byte load feeds four steps. The bits of the eight codes are
// interleaved so that a rotation and a mask make bf16 pairs of them (kMoeRotate).
//
// Gate and up are one matrix: rows 0..7 of a tile are gate, rows 8..15 the same rows of up, so that both arguments of
// silu(gate) * up meet in one thread.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mimo::cuda {

inline constexpr int kMoeTileRows = 16;
inline constexpr int kMoeTileCols = 128;
inline constexpr int kMoeTileCodes = 1024;  // bytes
inline constexpr int kMoeTileBytes = kMoeTileCodes + 64;

// Pair p of a lane's fragment (register a_p: p % 2 = 0 row l / 4, 1 row l / 4 + 8; p / 2 = 1 the columns + 8) is read
// off the word rotated left by kMoeRotate[p]: sign, exponent and mantissa bits at 15, 8, 7, 6 of the half for the even
// column, 16 higher for the odd one. Of pair 3 the mantissa bit is rotated by kMoeRotateLast instead. Read as bf16 that
// is the value times 2^-126.
inline constexpr int kMoeRotate[4] = {0, 4, 10, 14};
inline constexpr int kMoeRotateLast = 6;

// Scales are stored as the exponent field of the bf16 that a decoded code is multiplied by: byte + 62, for a product of
// value * 2^-64. The 2^64 goes into the sums: so every scale from 2^-60 to 2^65 keeps its weights exact (larger ones are
// clamped, weights under 2^-69 fade to 0).
inline constexpr int kMoeScaleBias = 62;
inline constexpr int kMoeScaleMax = 192;
inline constexpr float kMoeUnscale = 18446744073709551616.0f;  // 2^64

// Both dimensions must be multiples of 128.
constexpr bool moe_shape_packs(int hidden, int inter) {
  return hidden > 0 && inter > 0 && hidden % kMoeTileCols == 0 && inter % kMoeTileCols == 0;
}
// Bytes of one expert's gate and up, or of its down.
constexpr std::size_t moe_gate_up_bytes(int hidden, int inter) {
  return static_cast<std::size_t>(inter / 8) * static_cast<std::size_t>(hidden / kMoeTileCols) *
         kMoeTileBytes;
}
constexpr std::size_t moe_down_bytes(int hidden, int inter) {
  return static_cast<std::size_t>(hidden / kMoeTileRows) * static_cast<std::size_t>(inter / kMoeTileCols) *
         kMoeTileBytes;
}

}  // namespace mimo::cuda
