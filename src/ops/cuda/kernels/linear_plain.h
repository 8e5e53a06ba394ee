// The plain linear layer: any format, any shape, fp32 arithmetic throughout; what faster kernels are tested against,
// and the exact mode.
#pragma once

#include "ops/cuda/kernels/linear.h"

namespace mimo::cuda {

// Products of stored weights and activations are added up in fp32 in the order of the columns, whatever the number of
// rows; FP8 weights: within a block of 128 columns, whose sum is then multiplied by its scale and added.
void launch_linear_plain(const LinearArgs& args, const LinearWeight& weight, cudaStream_t stream);

}  // namespace mimo::cuda
