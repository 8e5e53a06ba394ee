// The linear layer as the forward pass calls it: chooses the kernel by format, shape and rows.
#pragma once

#include "ops/cuda/kernels/linear_large.h"
#include "ops/cuda/kernels/linear_plain.h"
#include "ops/cuda/kernels/linear_small.h"

namespace mimo::cuda {

// Up to so many rows go through the kernel for few rows, more through the one for many; between the two a row's bits
// may differ.
int linear_small_limit(const LinearWeight& weight);

// F32 weights or fp32 activations: the plain kernel. BF16 weights: bf16 x. FP8 weights: `quant` (x is ignored), or, if
// that is null, the plain kernel on bf16 x without quantisation. Workspace: linear_small_workspace().
void launch_linear(const LinearArgs& args, const QuantRows* quant, const LinearWeight& weight,
                   void* workspace, bool overlap, cudaStream_t stream);

}  // namespace mimo::cuda
