// Draws one token for each row of logits, as the sampler of the engine does (engine/sampler.h, steps 3 to 5): the
// largest logit, or temperature, min_p, top_k, top_p and a draw that inverts the cumulative distribution in the order
// of ids. Bias, penalties, masks and log-probabilities are not done here.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <limits>

namespace mimo::cuda {

// What one row asks for. Rows of one launch may differ.
struct SampleRow {
  float inverse_temperature =
      0;                   // (float)(1.0 / temperature), at most 1e5; 0: greedy, the rest is not looked at
  std::int32_t top_k = 0;  // 0 or less: off; may exceed the number of logits
  double min_p_distance =  // temperature * log(min_p): how far below the largest logit tokens are kept
      -std::numeric_limits<double>::infinity();  // off
  double top_p = 1;                              // (0, 1]; 1: off
  double uniform = 0;                            // [0, 1), drawn by the caller
};

struct SampleArgs {
  const float* logits = nullptr;  // [rows][row_stride]
  std::size_t row_stride = 0;     // elements
  int rows = 0;
  int count =
      0;  // ids below this may be drawn; at most row_stride and kSampleMaxCount. Nothing behind it is read.
  const SampleRow* params = nullptr;  // [rows], device memory, 8-byte aligned
  // [rows], device memory. -1: the row has a NaN or +inf below `count`, or nothing above -inf.
  std::int32_t* ids = nullptr;
  // Launched with programmatic stream serialization: starts while the kernel before it ends, reads nothing before that
  // one's end. What follows may do the same.
  bool overlap = false;
  int cluster =
      0;  // thread blocks that share a row, 8 or 16; 0: as suits `rows`. The result does not depend on it.
};

// Weights are summed as 64-bit integers, 2^44 for the largest logit.
inline constexpr int kSampleMaxCount = (1 << 18) - 1;

// One launch, no workspace. A row's token depends on its logits and its parameters alone, bit for bit.
void sample_tokens(const SampleArgs& args, cudaStream_t stream);

// best_tokens of elementwise.h with a cluster of blocks for each row; count is at most kSampleMaxCount. The sum of a
// probability is that of the weights above.
void best_tokens_in_clusters(const float* logits, std::size_t row_stride, int rows, int count,
                             std::int32_t* ids, float* probabilities, bool overlap, cudaStream_t stream);

}  // namespace mimo::cuda
