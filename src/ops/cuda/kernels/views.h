// What kernels see of the caches and of the sequences of a step: plain structs of device pointers, passed by value.
// All arrays lie at addresses that stay the same from step to step, so that a captured graph can be replayed with new
// contents.
#pragma once

#include <cstdint>

namespace mimo::cuda {

// Element type of activations in device memory.
enum class ActType : std::uint8_t { kF32, kBF16 };

// Keys and values of one layer. Inside a page all tokens of a KV head lie together, so that a page of any size is
// one contiguous run for the head that reads it.
struct KvView {
  void* k = nullptr;         // [pages][kv_heads][page_size][qk_dim], bf16 or E4M3
  void* v = nullptr;         // [pages][kv_heads][page_size][v_dim], bf16 or E4M3
  float* k_scale = nullptr;  // [pages][kv_heads][page_size]; E4M3 only: multiplies the key
  float* v_scale = nullptr;  // [pages][kv_heads][page_size]; E4M3 only: multiplies the value
  int pages = 0;
  int page_size = 0;
  int kv_heads = 0;
  int qk_dim = 0;
  int v_dim = 0;
  bool fp8 = false;
};

// The sequences of a step as one kind of layer sees them. Rows of a sequence are consecutive and stand at absolute
// positions [position, position + rows); keys of position p are in page pages[s * page_stride + p / page_size].
// Entries of pages that have left a window are -1 and must not be read.
struct SequenceView {
  const std::int32_t* row_begin = nullptr;  // [sequences]
  const std::int32_t* rows = nullptr;  // [sequences]; 0: an empty place (a graph captured for more sequences)
  const std::int32_t* position = nullptr;  // [sequences] of the first row
  const std::int32_t* first_key =
      nullptr;                          // [sequences] positions before it were never stored: no row sees them
  const std::int32_t* pages = nullptr;  // [sequences][page_stride]
  const std::int32_t* row_sequence = nullptr;  // [total_rows]: which sequence a row belongs to; -1: none
  int page_stride = 0;
  // Known to the host when it launches. In a captured graph they are upper bounds of what the arrays will say.
  int sequences = 0;
  int total_rows = 0;
  int max_rows = 0;  // of one sequence
  int max_keys = 0;  // position + rows of any sequence
  // For the host: a number that no other contents of the arrays have had. Not in a kernel: a graph keeps the first.
  std::uint64_t version = 0;
};

enum class Mask : std::uint8_t {
  kCausal,         // a row sees no key after its own
  kBidirectional,  // it sees those of all rows of its sequence in this step
};

// Attention of all rows over the keys of their sequences, as ops.h specifies (visible_keys).
struct AttentionArgs {
  const void* q = nullptr;  // ActType; head h of row r begins at q + r * q_stride + h * qk_dim (elements)
  std::int64_t q_stride = 0;
  void* out = nullptr;  // ActType [total_rows][q_heads * v_dim]
  KvView kv;
  SequenceView sequences;
  const float* sinks = nullptr;  // [q_heads] or null; a logit without a value, not scaled
  int q_heads = 0;
  int window = 0;  // keys a row sees, its own included; 0: all before it
  bool anchor_window =
      false;        // the window counts from the sequence's first row of the step: keys from position - W
  float scale = 0;  // multiplies q.k
  Mask mask = Mask::kCausal;
  ActType type = ActType::kBF16;
};

}  // namespace mimo::cuda
