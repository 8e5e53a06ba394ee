#include "ops/cuda/cuda_check.h"
#include "ops/cuda/kernels/linear.h"

namespace mimo::cuda {
namespace {

// One 16-byte piece of one row a thread.
__global__ void pack_rows(std::uint8_t* data, int row, int rows, int row_bytes, int k_blocks,
                          const std::uint8_t* source, std::size_t stride) {
  const int pieces = (row_bytes + 15) / 16;
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int r = static_cast<int>(index / pieces);
  const int byte = static_cast<int>(index % pieces) * 16;
  if (r >= rows) return;
  const std::uint8_t* from = source + r * stride + byte;
  uint4 piece = {0, 0, 0, 0};
  if (byte + 16 <= row_bytes && reinterpret_cast<std::uintptr_t>(from) % 16 == 0) {
    piece = *reinterpret_cast<const uint4*>(from);
  } else {
    std::uint32_t words[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      if (byte + i < row_bytes) words[i / 4] |= static_cast<std::uint32_t>(from[i]) << (i % 4 * 8);
    }
    piece = {words[0], words[1], words[2], words[3]};
  }
  *reinterpret_cast<uint4*>(data + linear_offset(row + r, byte, k_blocks)) = piece;
}

// One scale a thread; rows of one group write the same value.
__global__ void pack_scales(float* scales, int scale_rows, int row, int rows, int blocks, const float* grid,
                            int grid_row, std::size_t grid_stride) {
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int r = static_cast<int>(index / blocks);
  const int block = static_cast<int>(index % blocks);
  if (r >= rows || ((row + r) % scale_rows != 0 && r != 0)) return;
  scales[static_cast<std::size_t>((row + r) / scale_rows) * blocks + block] =
      grid[static_cast<std::size_t>((grid_row + r) / kLinearScaleCols) * grid_stride + block];
}

unsigned grid_of(std::int64_t threads, int block) {
  return static_cast<unsigned>((threads + block - 1) / block);
}

}  // namespace

std::size_t linear_data_bytes(const LinearWeight& weight) {
  return static_cast<std::size_t>(linear_row_blocks(weight.rows)) *
         linear_k_blocks(weight.format, weight.cols) * kLinearBlockSize;
}

std::size_t linear_scale_bytes(const LinearWeight& weight) {
  if (weight.format != LinearFormat::kFp8) return 0;
  const int groups = linear_row_blocks(weight.rows) * kLinearBlockRows / weight.scale_rows;
  return static_cast<std::size_t>(groups) * linear_k_blocks(weight.format, weight.cols) * sizeof(float);
}

void begin_linear_pack(const LinearWeight& weight, cudaStream_t stream) {
  MIMO_CUDA(cudaMemsetAsync(weight.data, 0, linear_data_bytes(weight), stream));
  const std::size_t scale_bytes = linear_scale_bytes(weight);
  if (scale_bytes != 0) MIMO_CUDA(cudaMemsetAsync(weight.scales, 0, scale_bytes, stream));
}

void pack_linear_rows(const LinearWeight& weight, int row, int rows, const void* source, std::size_t stride,
                      cudaStream_t stream) {
  if (rows == 0) return;
  const int row_bytes = weight.cols * linear_element_bytes(weight.format);
  const std::int64_t threads = static_cast<std::int64_t>(rows) * ((row_bytes + 15) / 16);
  pack_rows<<<grid_of(threads, 256), 256, 0, stream>>>(static_cast<std::uint8_t*>(weight.data), row, rows,
                                                       row_bytes, linear_k_blocks(weight.format, weight.cols),
                                                       static_cast<const std::uint8_t*>(source), stride);
  MIMO_CUDA_LAUNCHED();
}

void pack_linear_scales(const LinearWeight& weight, int row, int rows, const float* grid, int grid_row,
                        std::size_t grid_stride, cudaStream_t stream) {
  if (rows == 0) return;
  const int blocks = linear_k_blocks(weight.format, weight.cols);
  pack_scales<<<grid_of(static_cast<std::int64_t>(rows) * blocks, 256), 256, 0, stream>>>(
      weight.scales, weight.scale_rows, row, rows, blocks, grid, grid_row, grid_stride);
  MIMO_CUDA_LAUNCHED();
}

}  // namespace mimo::cuda
