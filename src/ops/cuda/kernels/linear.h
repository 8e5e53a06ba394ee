// Weights of dense linear layers in device memory, and how they get there.
//
// One layout serves every kernel. A matrix [rows, cols] is cut into blocks of 128 rows x 128 bytes of a row (128 FP8,
// 64 BF16 or 32 F32 elements), stored one after the other, all blocks of the first 128 rows first; blocks at the
// edges are filled with zeros. In a block, row r is 128 bytes, of which the 16-byte piece c lies at place c ^ (r % 8):
// the order in which tensor cores read shared memory without bank conflicts, so that a block goes from memory into a
// kernel as one 16 KiB bulk copy.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "ops/cuda/kernels/views.h"

#ifdef __CUDACC__
#define MIMO_HOST_DEVICE __host__ __device__
#else
#define MIMO_HOST_DEVICE
#endif

namespace mimo::cuda {

enum class LinearFormat : std::uint8_t { kF32, kBF16, kFp8 };

inline constexpr int kLinearBlockRows = 128;
inline constexpr int kLinearBlockBytes = 128;  // of a row
inline constexpr int kLinearBlockSize = kLinearBlockRows * kLinearBlockBytes;
inline constexpr int kLinearScaleCols = 128;

struct LinearWeight {
  LinearFormat format = LinearFormat::kBF16;
  int rows = 0;
  int cols = 0;
  void* data = nullptr;
  // kFp8: the scale of (r, c) is scales[(r / scale_rows) * ceil(cols / 128) + c / 128].
  float* scales = nullptr;
  int scale_rows =
      64;  // 64 where no scale changes inside an aligned group of 64 rows (every known model), else 1
};

MIMO_HOST_DEVICE constexpr int linear_element_bytes(LinearFormat format) {
  return format == LinearFormat::kF32 ? 4 : format == LinearFormat::kBF16 ? 2 : 1;
}

// Blocks along a row.
MIMO_HOST_DEVICE constexpr int linear_k_blocks(LinearFormat format, int cols) {
  const int per_block = kLinearBlockBytes / linear_element_bytes(format);
  return (cols + per_block - 1) / per_block;
}

// Blocks along a column.
MIMO_HOST_DEVICE constexpr int linear_row_blocks(int rows) {
  return (rows + kLinearBlockRows - 1) / kLinearBlockRows;
}

// Where byte `byte` of row `row` lies in `data`.
MIMO_HOST_DEVICE constexpr std::size_t linear_offset(int row, int byte, int k_blocks) {
  const std::size_t block =
      static_cast<std::size_t>(row / kLinearBlockRows) * k_blocks + byte / kLinearBlockBytes;
  const int piece = (byte % kLinearBlockBytes / 16) ^ (row % 8);
  return block * kLinearBlockSize + (row % kLinearBlockRows) * kLinearBlockBytes + piece * 16 + byte % 16;
}

std::size_t linear_data_bytes(const LinearWeight& weight);   // of `data`; 1024-byte alignment
std::size_t linear_scale_bytes(const LinearWeight& weight);  // of `scales`; 0 unless kFp8

// Packing: begin, then every run of rows once. All of it is asynchronous on the stream.
void begin_linear_pack(const LinearWeight& weight, cudaStream_t stream);

// Rows [row, row + rows) of the matrix from row-major device memory, `stride` bytes from a row to the next.
void pack_linear_rows(const LinearWeight& weight, int row, int rows, const void* source, std::size_t stride,
                      cudaStream_t stream);

// Scales of the same rows: the scale of (row + r, c) is grid[(grid_row + r) / 128 * grid_stride + c / 128] (device
// memory). Where scale_rows is 64, groups of 64 aligned rows of the whole matrix must not straddle two grid rows.
void pack_linear_scales(const LinearWeight& weight, int row, int rows, const float* grid, int grid_row,
                        std::size_t grid_stride, cudaStream_t stream);

// Whether a run of rows allows scale_rows = 64 (a matrix does if all its runs do).
constexpr bool linear_scales_aligned(int row, int rows, int matrix_rows, int grid_row) {
  const bool starts = row % 64 == 0 && grid_row % 64 == 0;
  return starts && (rows % 64 == 0 || row + rows == matrix_rows);
}

// y (+)= x W^T.
struct LinearArgs {
  const void* x = nullptr;  // [rows][x_stride], weight.cols of each row are read
  ActType x_type = ActType::kBF16;
  std::int64_t x_stride = 0;  // elements
  void* y = nullptr;          // [rows][y_stride], weight.rows of each row are written
  ActType y_type = ActType::kF32;
  std::int64_t y_stride = 0;  // elements
  bool add = false;           // y += ; fp32 only
  int rows = 0;
};

}  // namespace mimo::cuda
