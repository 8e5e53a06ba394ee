#include "ops/cuda/kernels/moe_pack.h"

namespace mimo::cuda {
namespace {

// Bits of the two codes of pair p (even column first) in a lane's word.
__device__ std::uint32_t place(int p, std::uint32_t even, std::uint32_t odd) {
  const int rotate[4] = {kMoeRotate[0], kMoeRotate[1], kMoeRotate[2], kMoeRotate[3]};
  std::uint32_t word = 0;
#pragma unroll
  for (int odd_half = 0; odd_half < 2; ++odd_half) {
    const std::uint32_t code = odd_half ? odd : even;
#pragma unroll
    for (int bit = 0; bit < 4; ++bit) {
      const int target = (bit == 3 ? 15 : 6 + bit) + 16 * odd_half;
      const int r = p == 3 && bit == 0 ? kMoeRotateLast : rotate[p];
      word |= (code >> bit & 1u) << ((target - r) & 31);
    }
  }
  return word;
}

// A block packs one tile: 64 threads, one 16-byte piece each. Row r of the tile is row `r` of `first` for r < split and
// row r - split of `second` after that.
__global__ void pack(Mxfp4Rows first, Mxfp4Rows second, int rows_of_each, std::uint8_t* out) {
  const int tile_row = static_cast<int>(blockIdx.y);
  const int tile_col = static_cast<int>(blockIdx.x);
  const auto source = [&](int r) -> Mxfp4Rows {
    const bool is_second = rows_of_each == 8 && r >= 8;
    Mxfp4Rows m = is_second ? second : first;
    const std::int64_t row = static_cast<std::int64_t>(tile_row) * rows_of_each + (is_second ? r - 8 : r);
    m.codes += row * m.row_stride;
    m.scales += row * m.scale_stride;
    return m;
  };
  std::uint8_t* tile = out + (static_cast<std::int64_t>(tile_row) * gridDim.x + tile_col) * kMoeTileBytes;
  const int half = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  std::uint32_t words[4] = {0, 0, 0, 0};
  for (int r = 0; r < 2; ++r) {
    const Mxfp4Rows row = source(lane / 4 + 8 * r);
    for (int step = 0; step < 4; ++step) {
      for (int high = 0; high < 2; ++high) {
        const int col = tile_col * kMoeTileCols + half * 64 + step * 16 + high * 8 + lane % 4 * 2;
        const std::uint32_t pair = row.codes[col / 2];
        words[step] |= place(r + 2 * high, pair & 15, pair >> 4);
      }
    }
  }
  reinterpret_cast<uint4*>(tile)[threadIdx.x] = make_uint4(words[0], words[1], words[2], words[3]);
  const int r = static_cast<int>(threadIdx.x) / 8 + 8 * (static_cast<int>(threadIdx.x) / 4 % 2);
  const int block = static_cast<int>(threadIdx.x) % 4;
  const int scale = source(r).scales[tile_col * 4 + block];
  tile[kMoeTileCodes + threadIdx.x] = static_cast<std::uint8_t>(min(scale, kMoeScaleMax) + kMoeScaleBias);
}

}  // namespace

cudaError_t launch_pack_expert(const Mxfp4Rows& gate, const Mxfp4Rows& up, const Mxfp4Rows& down, int hidden,
                               int inter, std::uint8_t* gate_up, std::uint8_t* packed_down,
                               cudaStream_t stream) {
  if (!moe_shape_packs(hidden, inter)) return cudaErrorInvalidValue;
  const auto tiles = [](int n, int size) { return static_cast<unsigned>(n / size); };
  pack<<<dim3(tiles(hidden, kMoeTileCols), tiles(inter, 8)), 64, 0, stream>>>(gate, up, 8, gate_up);
  pack<<<dim3(tiles(inter, kMoeTileCols), tiles(hidden, kMoeTileRows)), 64, 0, stream>>>(down, down, 16,
                                                                                         packed_down);
  return cudaGetLastError();
}

}  // namespace mimo::cuda
