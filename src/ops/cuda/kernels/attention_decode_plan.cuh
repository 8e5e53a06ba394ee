// How attention_decode divides its work. All of it follows from device arrays and from numbers that do not depend on
// the rows of the launch, on the host (bounds) and on the device (the work itself) alike.
#pragma once

#include "ops/cuda/kernels/attention_mask.cuh"

namespace mimo::cuda::decode {

inline constexpr int kTile = 64;          // keys
inline constexpr int kSequences = 256;    // of one launch
inline constexpr int kWholeWindow = 512;  // windows up to this are never split
inline constexpr int kWhole = 1 << 24;    // tiles: a chunk that holds everything

// a / b of numbers from 0 to 2^22, in a few instructions.
__host__ __device__ inline int quotient(int a, int b) {
#ifdef __CUDA_ARCH__
  const int q = static_cast<int>(__fdividef(static_cast<float>(a), static_cast<float>(b)));
  const int rest = a - q * b;
  return rest < 0 ? q - 1 : rest >= b ? q + 1 : q;
#else
  return a / b;
#endif
}

// The split of contexts by the number of sequences: a context is cut into at most `target` chunks of at least `least`
// tiles. One sequence gives every SM one chunk of one KV head; so do many, and then each SM has an equal share of
// each sequence whatever their lengths. Contexts that are short beside their number are cut less.
struct Plan {
  int target = 1;
  int least = 1;
  __host__ __device__ int chunk(int tiles) const {
    const int size = quotient(tiles + target - 1, target);
    return size > least ? size : least;
  }
};

__host__ __device__ inline Plan make_plan(int sms, int kv_heads, int sequences) {
  const int pairs = sequences * kv_heads;
  Plan plan;
  plan.target = sms > kv_heads ? quotient(sms, kv_heads) : 1;
  const int enough = quotient(sms, pairs) > 66 ? quotient(sms, pairs) : 66;
  if (plan.target > enough) plan.target = enough;
  if (pairs > 128) {
    const int fewer = quotient(plan.target * 128, pairs);
    plan.target = fewer > 2 ? fewer : plan.target < 2 ? plan.target : 2;
  }
  if (pairs <= 32) {
    plan.least = pairs > 8 ? pairs / 4 : 2;
  } else {
    plan.least = pairs < 128 ? pairs * pairs / 128 : 128;
  }
  return plan;
}

// Rows [0, boundary) of a sequence are split by chunk[0] tiles, the others by chunk[1]: the chunk of a row follows
// from its own position, not from those of the rows beside it.
struct Segments {
  int boundary = 0;
  int chunk[2] = {kWhole, kWhole};
};

__device__ inline Segments segments_of(const AttentionArgs& args, const Plan& plan,
                                       const SequenceOf& sequence) {
  Segments parts;
  parts.boundary = sequence.rows;
  if (args.window > 0 && args.window <= kWholeWindow) return parts;
  if (args.mask == Mask::kCausal && args.window == 0) {
    parts.chunk[0] = plan.chunk((sequence.position + kTile) / kTile);
    parts.chunk[1] = plan.chunk((sequence.position + sequence.rows + kTile - 1) / kTile);
    if (parts.chunk[0] != parts.chunk[1]) {
      parts.boundary = min(sequence.rows, kTile * parts.chunk[0] * plan.target - sequence.position);
    }
  } else if (args.mask == Mask::kCausal && !args.anchor_window) {
    parts.chunk[0] = plan.chunk(args.window / kTile + 1);
  } else {
    const VisibleKeys keys = visible_keys(args, sequence, 0);
    parts.chunk[0] = plan.chunk((sequence.position + sequence.rows + kTile - 1) / kTile - keys.first / kTile);
  }
  return parts;
}

// Rows of a sequence that are worked on together, and the tiles [tile_begin, tile_end) that they see, cut at
// base + k * chunk into `splits` pieces.
struct Block {
  int row_begin = 0;
  int row_end = 0;
  VisibleKeys keys;
  int tile_begin = 0;
  int tile_end = 0;
  int base = 0;
  int chunk = 0;
  int first_chunk = 0;
  int splits = 0;
};

__device__ inline Block make_block(const AttentionArgs& args, const SequenceOf& sequence, int row_begin,
                                   int row_end, int chunk) {
  Block block;
  block.row_begin = row_begin;
  block.row_end = row_end;
  block.keys = {visible_keys(args, sequence, row_begin).first,
                visible_keys(args, sequence, row_end - 1).last};
  block.tile_begin = block.keys.first / kTile;
  block.tile_end = max(block.tile_begin + 1, (block.keys.last + kTile - 1) / kTile);
  block.base = args.mask == Mask::kCausal && !args.anchor_window ? 0 : block.tile_begin;
  block.chunk = chunk;
  if (chunk == kWhole) {
    block.splits = 1;
    return block;
  }
  block.first_chunk = quotient(block.tile_begin - block.base, chunk);
  block.splits = quotient(block.tile_end - 1 - block.base, chunk) - block.first_chunk + 1;
  return block;
}

// Calls visit(block) for the blocks of at most `most` rows of a sequence, in order, until it returns true.
template <class Visit>
__device__ inline void for_blocks(const AttentionArgs& args, const Plan& plan, const SequenceOf& sequence,
                                  int most, Visit&& visit) {
  const Segments parts = segments_of(args, plan, sequence);
  for (int begin = 0; begin < sequence.rows;) {
    const bool second = begin >= parts.boundary;
    const int end = min(begin + most, second ? sequence.rows : parts.boundary);
    if (visit(make_block(args, sequence, begin, end, parts.chunk[second ? 1 : 0]))) return;
    begin = end;
  }
}

// A block, one KV head and one of the splits.
struct Item {
  SequenceOf sequence;
  Block block;
  int row_slot = 0;  // of the sequence's first row among the rows of all sequences
  int head = 0;
  int split = 0;
  int tile_begin = 0;
  int tile_end = 0;
};

}  // namespace mimo::cuda::decode
