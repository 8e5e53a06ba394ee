// Linear layers on few rows (decode, verification): as fast as the weights can be read.
#pragma once

#include "ops/cuda/kernels/activation_quant.h"
#include "ops/cuda/kernels/linear.h"

namespace mimo::cuda {

inline constexpr int kLinearSmallRows = 128;  // at most

// Greedy choice among the first `count` outputs of a row instead of the outputs themselves.
struct BestArgs {
  int count = 0;                // at least 1, at most the weight's rows
  std::int32_t* ids = nullptr;  // [rows] the best, the lowest on ties; -1 if any of them is not finite
  float* probabilities =
      nullptr;  // [rows] its softmax probability, NaN if any of them is not finite; or null
};

// Bytes that any launch on this device needs as workspace. Its first linear_small_counter_bytes() must be zero before
// the first launch and are zero again after each. Launches one after the other may share a
// workspace, overlapping or not: a kernel writes to it after the one before has ended.
std::size_t linear_small_workspace(const LinearWeight& weight, bool best);
std::size_t linear_small_counter_bytes();

// Whether every output is one thread block's sum over all columns: it then has the bits that the kernel for many rows
// gives it.
bool linear_small_whole(const LinearWeight& weight);

// BF16 weights: x is bf16, 16-byte aligned rows. FP8 weights: x is ignored and `quant` read. 1 to kLinearSmallRows
// rows. Within a block of 128 columns FP8 products are added in the tensor core's accumulator, then scaled and added
// in fp32. The order of additions depends on the weight's shape and the device only, never on the rows.
// `overlap`: the launch may start before the kernel before it on the stream has ended (it reads weights meanwhile);
// that kernel must not write the weights.
void launch_linear_small(const LinearArgs& args, const QuantRows* quant, const LinearWeight& weight,
                         void* workspace, bool overlap, cudaStream_t stream);
// BF16 weights: chooses among the outputs (args.y and what describes it are ignored). An output has the
// bits that launch_linear_small gives it, but for weights of so few rows that their columns are shared out in clusters.
void launch_linear_best(const LinearArgs& args, const LinearWeight& weight, const BestArgs& best,
                        void* workspace, bool overlap, cudaStream_t stream);

}  // namespace mimo::cuda
