// Linear layers on many rows (prefill): as fast as the tensor cores multiply.
#pragma once

#include "ops/cuda/kernels/activation_quant.h"
#include "ops/cuda/kernels/linear.h"

namespace mimo::cuda {

// BF16 weights: x is bf16, 16-byte aligned rows. FP8 weights: x is ignored and `quant` read; scale_rows must be 64.
// Any number of rows. `overlap`: as of launch_linear_small. The sum of every 128 columns of FP8 products is formed in the tensor core's accumulator, scaled
// and added in fp32, in the order of the columns; BF16 products are all added up in the accumulator.
void launch_linear_large(const LinearArgs& args, const QuantRows* quant, const LinearWeight& weight,
                         bool overlap, cudaStream_t stream);

// Tile heights and cluster sizes can be forced, for measurements: waves 1 or 2 (128 or 256 rows), 0: chosen.
struct LinearLargeTuning {
  int waves = 0;
  int cluster = 0;
};
void launch_linear_large(const LinearArgs& args, const QuantRows* quant, const LinearWeight& weight,
                         const LinearLargeTuning& tuning, bool overlap, cudaStream_t stream);

}  // namespace mimo::cuda
