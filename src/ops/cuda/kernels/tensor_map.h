// Descriptions of row-major matrices for the tensor copy engine.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace mimo::cuda {

// Tiles of `tile_rows` rows x 128 bytes out of rows of `row_bytes` (`stride` bytes apart; base and stride multiples of
// 16), stored swizzled by 128 bytes. Elements of 1 byte, 2 (BF16) or 4 (F32). Reads past the rows and columns give
// zeros; writes past them do nothing (if the columns are a multiple of 16 bytes). Throws CudaError.
CUtensorMap tensor_map_rows(const void* base, int element_bytes, std::int64_t rows, std::int64_t cols,
                            std::int64_t stride, int tile_rows);

}  // namespace mimo::cuda
