#include "ops/cuda/kernels/tensor_map.h"

#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include "ops/cuda/cuda_check.h"

namespace mimo::cuda {
namespace {

using EncodeTiled = PFN_cuTensorMapEncodeTiled_v12000;

// Asked of the runtime so that nothing links the driver library.
EncodeTiled encode_tiled() {
  static const EncodeTiled function = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
    MIMO_CUDA(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault,
                                               &result));
    if (result != cudaDriverEntryPointSuccess) MIMO_CUDA(cudaErrorNotSupported);
    return reinterpret_cast<EncodeTiled>(found);
  }();
  return function;
}

}  // namespace

CUtensorMap tensor_map_rows(const void* base, int element_bytes, std::int64_t rows, std::int64_t cols,
                            std::int64_t stride, int tile_rows) {
  CUtensorMap map;
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(cols), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(stride)};
  const cuuint32_t box[2] = {static_cast<cuuint32_t>(128 / element_bytes),
                             static_cast<cuuint32_t>(tile_rows)};
  const cuuint32_t steps[2] = {1, 1};
  const CUtensorMapDataType type = element_bytes == 1   ? CU_TENSOR_MAP_DATA_TYPE_UINT8
                                   : element_bytes == 2 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                                        : CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
  const CUresult result = encode_tiled()(
      &map, type, 2, const_cast<void*>(base), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) MIMO_CUDA(cudaErrorInvalidValue);
  return map;
}

}  // namespace mimo::cuda
