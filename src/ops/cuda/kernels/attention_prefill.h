// Attention of long chunks of rows on Hopper's tensor cores: heads of 192 dims for queries and keys and 128 for
// values, bf16 activations.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "ops/cuda/kernels/views.h"

namespace mimo::cuda {

// Whether attention_prefill can run these arguments (and the device is a Hopper GPU's, which it does not check).
bool attention_prefill_supports(const AttentionArgs& args);

// Bytes of device memory for the plan of a launch; aligned to 256.
std::size_t attention_prefill_workspace(const AttentionArgs& args);

// Lays out the work of a step for one kind of layer in `workspace`: reads the sequences of `args` and its window, mask
// and number of heads. All layers of that kind can then use it, one after the other, until the sequences change.
void attention_prefill_plan(const AttentionArgs& args, void* workspace, cudaStream_t stream);

// Attention of every row over the keys that it sees (visible_keys of ops.h), as planned in `workspace`. Rows that
// belong to no sequence are left alone. A row's result is the same bits whatever the other rows of the launch, and
// however its sequence is cut into steps: tiles of keys begin at positions that follow from the row's own. What
// invisible slots of pages hold never matters, not even NaN, and page entries without a visible key are not read.
// FP8 keys and values are rounded to f16 after their scale (their magnitudes may be up to 65504) and queries to f16 after
// a factor of 1/16 (exact from 1e-3 to 1e6 in magnitude, clamped above); weights are f16 then.
void attention_prefill(const AttentionArgs& args, void* workspace, cudaStream_t stream);

}  // namespace mimo::cuda
