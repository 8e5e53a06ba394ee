// Which keys a row sees, on the device: the rule of visible_keys in ops/ops.h.
#pragma once

#include "ops/cuda/kernels/views.h"

namespace mimo::cuda {

// One sequence of a step as the kernels read it.
struct SequenceOf {
  int row_begin = 0;
  int rows = 0;
  int position = 0;
  int first_key = 0;
  const std::int32_t* pages = nullptr;
};

__device__ inline SequenceOf load_sequence(const SequenceView& view, int s) {
  return {view.row_begin[s], view.rows[s], view.position[s], view.first_key[s],
          view.pages + static_cast<std::int64_t>(s) * view.page_stride};
}

// Keys [first, last) that row `row` of the sequence (0: its first) sees.
struct VisibleKeys {
  int first = 0;
  int last = 0;
};

__device__ inline VisibleKeys visible_keys(const AttentionArgs& args, const SequenceOf& sequence, int row) {
  const bool causal = args.mask == Mask::kCausal;
  const int position = sequence.position + row;
  int first = sequence.first_key;
  if (args.window > 0) {
    first = max(first, args.anchor_window ? sequence.position - args.window : position - (args.window - 1));
  }
  // The window is for the context: rows of the step see each other whatever its size.
  if (!causal) first = min(first, sequence.position);
  return {first, causal ? position + 1 : sequence.position + sequence.rows};
}

}  // namespace mimo::cuda
