#include <algorithm>

#include "ops/cuda/kernels/linear_any.h"

namespace mimo::cuda {

int linear_small_limit(const LinearWeight& weight) {
  // Narrow weights are too few tiles for the large kernel, which does not cut along the columns.
  return linear_row_blocks(weight.rows) >= 80 ? 64 : kLinearSmallRows;
}

void launch_linear(const LinearArgs& args, const QuantRows* quant, const LinearWeight& weight,
                   void* workspace, bool overlap, cudaStream_t stream) {
  const bool fp8 = weight.format == LinearFormat::kFp8;
  if (weight.format == LinearFormat::kF32 || (fp8 ? quant == nullptr : args.x_type == ActType::kF32)) {
    launch_linear_plain(args, weight, stream);
    return;
  }
  if (args.rows <= linear_small_limit(weight)) {
    launch_linear_small(args, quant, weight, workspace, overlap, stream);
    return;
  }
  if (!fp8 || weight.scale_rows == 64) {
    launch_linear_large(args, quant, weight, stream);
    return;
  }
  // Scales that change within 64 rows: as many steps of few rows as it takes.
  for (int first = 0; first < args.rows; first += kLinearSmallRows) {
    LinearArgs step = args;
    step.rows = std::min(kLinearSmallRows, args.rows - first);
    const std::int64_t y_bytes = args.y_type == ActType::kBF16 ? 2 : 4;
    step.y = static_cast<std::uint8_t*>(args.y) + first * args.y_stride * y_bytes;
    QuantRows rows = *quant;
    rows.values += first * quant->stride;
    rows.scales += first;
    launch_linear_small(step, &rows, weight, workspace, overlap, stream);
  }
}

}  // namespace mimo::cuda
