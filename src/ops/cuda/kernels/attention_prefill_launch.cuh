// Host side of a prefill launch: tensor maps, parameters, the two kernels.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <numeric>

#include "ops/cuda/cuda_check.h"
#include "ops/cuda/kernels/attention_prefill_kernel.cuh"

namespace mimo::cuda::prefill {

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

// The driver's function, found at run time, so that nothing links against the driver.
inline EncodeTiled encode_tiled() {
  static const EncodeTiled function = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found;
    MIMO_CUDA(
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found));
    if (found != cudaDriverEntryPointSuccess) MIMO_CUDA(cudaErrorNotSupported);
    return reinterpret_cast<EncodeTiled>(entry);
  }();
  return function;
}

// A map of rows of `slabs` * 64 bf16 as [outer][group][slab][8 rows][64]: `row_bytes` from row to row, groups of 8
// rows side by side, `outer_bytes` from one outer index to the next. A box takes `box_groups` x `box_outer` of them.
inline CUtensorMap rows_map(const void* data, int slabs, std::uint64_t row_bytes, std::uint64_t groups,
                            std::uint64_t outer, std::uint64_t outer_bytes, int box_groups, int box_outer) {
  CUtensorMap map;
  const cuuint64_t dims[5] = {64, 8, static_cast<cuuint64_t>(slabs), groups, outer};
  const cuuint64_t strides[4] = {row_bytes, 128, 8 * row_bytes, outer_bytes};
  const cuuint32_t box[5] = {64, 8, static_cast<cuuint32_t>(slabs), static_cast<cuuint32_t>(box_groups),
                             static_cast<cuuint32_t>(box_outer)};
  const cuuint32_t steps[5] = {1, 1, 1, 1, 1};
  const CUresult result =
      encode_tiled()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 5, const_cast<void*>(data), dims, strides, box,
                     steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                     CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) MIMO_CUDA(cudaErrorInvalidValue);
  return map;
}

inline PlanHeader* plan_header(void* workspace) { return static_cast<PlanHeader*>(workspace); }
inline Block* plan_list(void* workspace) {
  return reinterpret_cast<Block*>(static_cast<std::uint8_t*>(workspace) + kPlanBlocksAt);
}
inline MaskRule mask_rule(const AttentionArgs& args) {
  return {args.window, args.anchor_window, args.mask == Mask::kCausal};
}

template <class C>
void launch_plan(const AttentionArgs& args, void* workspace, cudaStream_t stream) {
  plan_kernel<<<1, 1024, 0, stream>>>(args.sequences, mask_rule(args),
                                      C::kRows / (args.q_heads / args.kv.kv_heads), C::kTile,
                                      plan_header(workspace), plan_list(workspace));
  MIMO_CUDA_LAUNCHED();
}

template <class C>
void launch(const AttentionArgs& args, void* workspace, cudaStream_t stream) {
  if (args.sequences.total_rows == 0) return;
  const SequenceView& view = args.sequences;
  const KvView& kv = args.kv;
  const int group = args.q_heads / kv.kv_heads;

  Params params;
  params.rule = mask_rule(args);
  params.box_runs = args.window > 0 ? 1 : std::gcd(kv.page_size / 8, C::kTile / 8);
  params.q_map = rows_map(args.q, kQkDim / 64, kQkDim * 2, static_cast<std::uint64_t>(args.q_heads) / 8,
                          static_cast<std::uint64_t>(view.total_rows),
                          static_cast<std::uint64_t>(args.q_stride) * 2, group / 8, 64 / group);
  const std::uint64_t page_heads = static_cast<std::uint64_t>(kv.pages) * kv.kv_heads;
  const std::uint64_t page_runs = static_cast<std::uint64_t>(kv.page_size) / 8;
  if constexpr (C::kLoad == Load::kBoxes) {
    params.k_map = rows_map(kv.k, kQkDim / 64, kQkDim * 2, page_runs, page_heads,
                            static_cast<std::uint64_t>(kv.page_size) * kQkDim * 2, params.box_runs, 1);
    params.v_map = rows_map(kv.v, kVDim / 64, kVDim * 2, page_runs, page_heads,
                            static_cast<std::uint64_t>(kv.page_size) * kVDim * 2, params.box_runs, 1);
  }
  params.k = static_cast<const std::uint8_t*>(kv.k);
  params.v = static_cast<const std::uint8_t*>(kv.v);
  params.k_scale = kv.k_scale;
  params.v_scale = kv.v_scale;
  params.header = plan_header(workspace);
  params.list = plan_list(workspace);
  params.out = static_cast<__nv_bfloat16*>(args.out);
  params.pages = view.pages;
  params.sinks = args.sinks;
  params.page_stride = view.page_stride;
  params.page_size = kv.page_size;
  params.page_inverse = ((std::uint64_t{1} << 32) + kv.page_size - 1) / kv.page_size;
  params.kv_heads = kv.kv_heads;
  params.group_shift = std::countr_zero(static_cast<unsigned>(group));
  params.out_stride = args.q_heads * kVDim;
  params.scale_log2 = args.scale * 1.4426950408889634f;

  // Both are kept for each device, so they are asked for again at every launch; that takes less than a microsecond.
  int device = 0, processors = 0;
  MIMO_CUDA(cudaGetDevice(&device));
  MIMO_CUDA(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
  const auto kernel = prefill_kernel<C>;
  MIMO_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, C::kSharedBytes));
  const int grid = std::min(max_blocks(view, C::kRows / group) * kv.kv_heads, processors);
  kernel<<<grid, C::kThreads, C::kSharedBytes, stream>>>(params);
  MIMO_CUDA_LAUNCHED();
}

}  // namespace mimo::cuda::prefill
