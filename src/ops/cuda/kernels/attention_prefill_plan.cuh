// The work of a prefill launch: blocks of rows, the ones with most keys first.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "ops/cuda/kernels/views.h"

namespace mimo::cuda::prefill {

// Rows of one sequence at positions [origin, origin + positions of a block), of which those in [first, last) are in
// this step. Blocks begin at multiples of their size, so that a row is always computed in the same place of a block.
struct alignas(16) Block {
  int sequence = 0;
  int origin = 0;
  int first = 0;
  int last = 0;
  int origin_row = 0;  // row of the launch that position `origin` would be; may be negative
  int position = 0;    // of the sequence's first row in this step
  int end = 0;         // position + rows of the sequence
  int first_key = 0;
};

// What the kernel reads of AttentionArgs to know which keys a row sees.
struct MaskRule {
  int window = 0;
  bool anchor = false;
  bool causal = true;

  // Keys [first, last) that a row at position p sees: visible_keys of ops.h.
  __device__ __forceinline__ int first(const Block& block, int p) const {
    int key = block.first_key;
    if (window > 0) key = max(key, anchor ? block.position - window : p - (window - 1));
    return causal ? key : min(key, block.position);
  }
  __device__ __forceinline__ int last(const Block& block, int p) const { return causal ? p + 1 : block.end; }
};

struct PlanHeader {
  int next = 0;      // work items handed out beyond the first one of every thread block
  int finished = 0;  // thread blocks that found no more work; the last one puts both to 0 again
  int blocks = 0;    // in the list
};
inline constexpr int kPlanBlocksAt = 64;    // bytes from the start of the workspace to the list
inline constexpr int kMaxSequences = 1024;  // of a launch: one thread each
inline constexpr int kCostBuckets = 4096;

inline int max_blocks(const SequenceView& view, int block_positions) {
  return view.total_rows / block_positions + 2 * view.sequences;
}

// Key at which the tiles of a block begin: a function of the block's place alone. With a window, tiles follow the
// window (aligned to 8 keys, what a copied box holds); without, they stand at multiples of their size.
__device__ __forceinline__ int tile_origin(const MaskRule& rule, const Block& block, int tile) {
  const int first = max(rule.first(block, block.origin), 0);
  return rule.window > 0 ? first & ~7 : first - first % tile;
}

// Inclusive sums over the 1024 threads of a block.
__device__ inline int block_scan(int value, int* warp_sums) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(~0u, value, step);
    if (lane >= step) value += other;
  }
  if (lane == 31) warp_sums[warp] = value;
  __syncthreads();
  if (warp == 0) {
    int sum = warp_sums[lane];
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(~0u, sum, step);
      if (lane >= step) sum += other;
    }
    warp_sums[lane] = sum;
  }
  __syncthreads();
  const int before = warp > 0 ? warp_sums[warp - 1] : 0;
  __syncthreads();
  return value + before;
}

// One thread block of 1024. Lists the blocks of all sequences by falling number of key tiles (a counting sort); with
// a window all cost about the same and keep their order.
static __global__ __launch_bounds__(1024, 1) void plan_kernel(SequenceView view, MaskRule rule,
                                                              int block_positions, int tile,
                                                              PlanHeader* header, Block* list) {
  __shared__ int ends[kMaxSequences];
  __shared__ int cursor[kCostBuckets];
  __shared__ int sums[32];
  const int thread = static_cast<int>(threadIdx.x);

  int blocks = 0;
  if (thread < view.sequences && view.rows[thread] > 0) {
    const int position = view.position[thread];
    blocks = (position + view.rows[thread] - 1) / block_positions - position / block_positions + 1;
  }
  ends[thread] = block_scan(blocks, sums);
  for (int b = thread; b < kCostBuckets; b += 1024) cursor[b] = 0;
  __syncthreads();
  const int total = ends[1023];
  if (thread == 0) *header = {0, 0, total};

  const bool sorted = rule.window == 0;
  for (int pass = sorted ? 0 : 1; pass < 2; ++pass) {
    for (int i = thread; i < total; i += 1024) {
      int low = 0, high = view.sequences - 1;  // the first sequence whose end is beyond i
      while (low < high) {
        const int middle = (low + high) / 2;
        if (ends[middle] > i) {
          high = middle;
        } else {
          low = middle + 1;
        }
      }
      Block block;
      block.sequence = low;
      block.position = view.position[low];
      block.end = block.position + view.rows[low];
      block.first_key = view.first_key[low];
      const int index = i - (low > 0 ? ends[low - 1] : 0);
      block.origin = (block.position / block_positions + index) * block_positions;
      block.first = max(block.origin, block.position);
      block.last = min(block.origin + block_positions, block.end);
      block.origin_row = view.row_begin[low] + block.origin - block.position;
      if (!sorted) {
        list[i] = block;
        continue;
      }
      const int keys = rule.last(block, block.last - 1) - tile_origin(rule, block, tile);
      const int bucket = max(kCostBuckets - 1 - keys / tile, 0);
      if (pass == 0) {
        atomicAdd(&cursor[bucket], 1);
      } else {
        list[atomicAdd(&cursor[bucket], 1)] = block;
      }
    }
    __syncthreads();
    if (pass == 1) break;
    constexpr int kEach = kCostBuckets / 1024;
    int counts[kEach], sum = 0;
    for (int b = 0; b < kEach; ++b) sum += counts[b] = cursor[thread * kEach + b];
    int before = block_scan(sum, sums) - sum;
    for (int b = 0; b < kEach; ++b) {
      cursor[thread * kEach + b] = before;
      before += counts[b];
    }
    __syncthreads();
  }
}

}  // namespace mimo::cuda::prefill
