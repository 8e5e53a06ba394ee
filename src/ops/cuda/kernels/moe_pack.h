// Packing of MXFP4 experts from checkpoint rows to the layout of moe_layout.h, one expert a call.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/kernels/moe_layout.h"

namespace mimo::cuda {

// Rows of a matrix as the checkpoint stores them, in device memory.
struct Mxfp4Rows {
  const std::uint8_t* codes = nullptr;   // [rows][cols / 2], low nibble = even column
  std::int64_t row_stride = 0;           // bytes; multiple of 4
  const std::uint8_t* scales = nullptr;  // [rows][cols / 32]
  std::int64_t scale_stride = 0;         // bytes
};

// gate_up: moe_gate_up_bytes, down: moe_down_bytes; both 16-byte aligned. gate, up [inter, hidden], down [hidden, inter].
cudaError_t launch_pack_expert(const Mxfp4Rows& gate, const Mxfp4Rows& up, const Mxfp4Rows& down, int hidden,
                               int inter, std::uint8_t* gate_up, std::uint8_t* packed_down,
                               cudaStream_t stream);

}  // namespace mimo::cuda
