// Attention in plain fp32 arithmetic, for any shape: the exact mode, the portable path of long prompts, and the
// kernel that the fast ones are compared with.
#pragma once

#include <cuda_runtime_api.h>

#include "ops/cuda/kernels/views.h"

namespace mimo::cuda {

// Dims of a head that attention_plain takes at most, of queries and of values.
inline constexpr int kPlainMaxDim = 256;

// Attention of every row over the keys that it sees (visible_keys). Scores, softmax and sums are fp32; keys of a
// row are taken in tiles that begin at multiples of 32 positions, so that its result depends on its own sequence
// only. Rows that belong to no sequence are left alone. No workspace. Any number of rows; q_heads is a multiple of
// kv_heads.
void attention_plain(const AttentionArgs& args, cudaStream_t stream);

}  // namespace mimo::cuda
