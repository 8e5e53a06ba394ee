// Attention of few rows a sequence (decode, verification of drafts, a drafter's block) over long contexts, on Hopper:
// tensor-core products over tiles of 64 keys, the context split over all SMs, partial results combined in the same
// launch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "ops/cuda/kernels/views.h"

namespace mimo::cuda {

// Rows of one sequence that attention_decode takes at most.
inline constexpr int kDecodeMaxRows = 16;

// Whether attention_decode runs this: bf16 queries and results, heads of 192 (or 128) and 128 dims, at most 16
// query heads a KV head and 16 rows a sequence, 16-byte aligned rows.
bool attention_decode_supports(const AttentionArgs& args);

// Bytes of device memory that a call with these bounds needs; the first kDecodeBarrierBytes must be zero before the
// first call (each call leaves them ready for the next), the rest may hold anything. Not to be shared by calls that
// may run at the same time.
std::size_t attention_decode_workspace(const AttentionArgs& args);
inline constexpr std::size_t kDecodeBarrierBytes = 256;

// Programmatic dependent launch: how much of a call may run before the kernel before it in the stream has ended.
enum class Overlap : std::uint8_t {
  kNone,    // an ordinary launch
  kLaunch,  // its launch only
  // It reads before that kernel ends: the arrays of args.sequences, the sinks, and keys and values before `position`
  // were written by work that had ended when that kernel began.
  kRead,
};

// The result of a row depends on its own sequence up to the row, and on the number of sequences that have rows; not
// on how many rows its sequence or the launch has (as long as all values that its sequence's rows see are finite).
void attention_decode(const AttentionArgs& args, void* workspace, cudaStream_t stream,
                      Overlap overlap = Overlap::kNone);

}  // namespace mimo::cuda
