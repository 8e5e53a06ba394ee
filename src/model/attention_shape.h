// What the layers of the target and the MTP heads derive from an attention shape of the config.
#pragma once

#include <cstddef>
#include <span>

#include "checkpoint/config.h"
#include "ops/ops.h"

namespace mimo {

// `sinks` [q_heads], or empty; it must outlive the spec.
AttentionSpec attention_spec(const AttentionShape& shape, const Vector& sinks);

// Columns of a fused row [q_heads * qk | kv_heads * qk | kv_heads * v].
std::size_t qkv_width(const AttentionShape& shape);

}  // namespace mimo
