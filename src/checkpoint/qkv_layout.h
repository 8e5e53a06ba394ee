// How the QKV projection of a checkpoint is stored (spec model 3.4): three tensors, or one matrix of T
// chunks, each [Q_c | K_c | V_c] with its own FP8 scale grid. A plain [Q | K | V] re-export is the same thing
// with T = 1.
#pragma once

#include <cstdint>

#include "checkpoint/config.h"

namespace mimo {

struct QkvLayout {
  bool fused = false;
  int chunks = 1;  // of the fused matrix
};

// Rows of the sections of one chunk.
struct QkvChunk {
  std::int64_t q_rows = 0;
  std::int64_t k_rows = 0;
  std::int64_t v_rows = 0;

  std::int64_t rows() const { return q_rows + k_rows + v_rows; }
};

constexpr std::int64_t fp8_blocks(std::int64_t n) { return (n + kFp8Block - 1) / kFp8Block; }

// `chunks` must divide the heads of `shape`.
inline QkvChunk qkv_chunk(const AttentionShape& shape, int chunks) {
  return {std::int64_t{shape.q_heads / chunks} * shape.qk_dim,
          std::int64_t{shape.kv_heads / chunks} * shape.qk_dim,
          std::int64_t{shape.kv_heads / chunks} * shape.v_dim};
}

}  // namespace mimo
