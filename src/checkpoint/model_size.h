// Numbers that follow from a config alone: parameters, stored bytes, KV bytes. Used by inspect and by memory
// plans.
#pragma once

#include <array>
#include <cstdint>

#include "checkpoint/config.h"
#include "checkpoint/tensor_table.h"

namespace mimo {

enum class KvFormat : std::uint8_t { kBF16, kFp8 };
const char* kv_format_name(KvFormat format);

// Bytes that one cached token of one layer takes for `kv_heads` heads. `row_scales`: FP8 rows carry one fp32
// scale for K and one for V per head.
std::uint64_t kv_bytes_per_token(const AttentionShape& shape, int kv_heads, KvFormat format, bool row_scales);

struct KvBytes {
  std::uint64_t full_per_token = 0;    // all full-attention layers: grows with the context
  std::uint64_t window_per_token = 0;  // all window layers: bounded by the window
};
KvBytes kv_bytes(const ModelConfig& config, KvFormat format, bool row_scales);

// Logical elements of a stored tensor: 0 for scales, two to a byte for MXFP4.
std::uint64_t parameters(const ExpectedTensor& tensor);

struct ModelSize {
  std::array<std::uint64_t, kTensorGroups> parameters{};  // by TensorGroup; kMtp: `mtp_heads` heads
  std::array<std::uint64_t, kTensorGroups> bytes{};       // as stored
  std::uint64_t total_parameters = 0;                     // text trunk, without MTP heads
  std::uint64_t active_parameters = 0;  // used for one token: top_k experts, lm_head, no embedding look-up
  std::uint64_t total_bytes = 0;        // with the MTP heads
};
ModelSize model_size(const ModelConfig& config, int mtp_heads);

}  // namespace mimo
