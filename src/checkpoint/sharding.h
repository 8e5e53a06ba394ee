// Which heads, rows and columns a tensor-parallel rank owns (see Shard in weight_source.h for the rule).
#pragma once

#include <cstdint>
#include <vector>

#include "checkpoint/config.h"
#include "checkpoint/weight_source.h"
#include "core/result.h"

namespace mimo {

struct Range {
  std::int64_t begin = 0;
  std::int64_t count = 0;
};

// The rank's part of `total` units; total must be a multiple of shard.size.
Range even_part(std::int64_t total, Shard shard);

// The rank's KV heads: an even part, or the one head that its query heads read when there are more ranks than
// heads.
Range kv_part(int kv_heads, Shard shard);

// Sizes for which every cut of this model falls on heads and on whole scale blocks.
std::vector<int> supported_shard_sizes(const ModelConfig& config);

// Refuses a size that is not in supported_shard_sizes (with the list) and a rank outside the size.
Status check_shard(const ModelConfig& config, Shard shard);
// The same for the MTP heads, which are cut like a window layer with a dense MLP.
Status check_mtp_shard(const ModelConfig& config, Shard shard);

}  // namespace mimo
