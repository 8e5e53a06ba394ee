#include "checkpoint/sharding.h"

#include <algorithm>

#include "checkpoint/tensor_table.h"

namespace mimo {
namespace {

// Columns of a row-parallel matrix can only be cut between scale blocks, since a block's columns share one
// scale.
std::int64_t column_step(WeightFormat format) {
  if (format == WeightFormat::kFp8) return kFp8Block;
  if (format == WeightFormat::kMxfp4) return kMxfp4Block;
  return 1;
}

bool columns_cut(std::int64_t columns, int size, WeightFormat format) {
  return size == 1 || (columns % size == 0 && columns / size % column_step(format) == 0);
}

bool heads_cut(const AttentionShape& shape, int size) {
  return shape.q_heads % size == 0 &&
         (size <= shape.kv_heads ? shape.kv_heads % size == 0 : size % shape.kv_heads == 0);
}

bool size_works(const ModelConfig& config, int size) {
  for (int layer = 0; layer < config.layers; ++layer) {
    const AttentionShape& shape = config.attention(layer);
    const WeightFormat o_proj = module_format(config, layer_module(layer, "self_attn.o_proj"));
    if (!heads_cut(shape, size) || !columns_cut(std::int64_t{shape.q_heads} * shape.v_dim, size, o_proj))
      return false;
    if (config.layer_is_moe[static_cast<std::size_t>(layer)]) {
      if (!columns_cut(config.moe_intermediate, size, config.expert_format)) return false;
    } else if (!columns_cut(config.intermediate, size,
                            module_format(config, layer_module(layer, "mlp.down_proj")))) {
      return false;
    }
  }
  return true;
}

bool mtp_size_works(const ModelConfig& config, int size) {
  const AttentionShape& shape = config.window;
  return heads_cut(shape, size) &&
         columns_cut(std::int64_t{shape.q_heads} * shape.v_dim, size,
                     mtp_module_format(config, 0, "self_attn.o_proj")) &&
         columns_cut(config.intermediate, size, mtp_module_format(config, 0, "mlp.down_proj"));
}

Status check(Shard shard, bool works, const std::vector<int>& supported) {
  if (shard.size < 1 || shard.rank < 0 || shard.rank >= shard.size) {
    return fail(ErrorCode::kInvalidArgument, "tensor-parallel rank {} of {}: expected 0 <= rank < size",
                shard.rank, shard.size);
  }
  if (works) return {};
  return fail(ErrorCode::kUnsupported,
              "tensor-parallel size {} does not divide this model's heads and blocks; supported: {}",
              shard.size, fmt::join(supported, ", "));
}

}  // namespace

Range even_part(std::int64_t total, Shard shard) {
  const std::int64_t count = total / shard.size;
  return {shard.rank * count, count};
}

Range kv_part(int kv_heads, Shard shard) {
  if (shard.size <= kv_heads) return even_part(kv_heads, shard);
  return {std::int64_t{shard.rank} * kv_heads / shard.size, 1};
}

std::vector<int> supported_shard_sizes(const ModelConfig& config) {
  std::vector<int> sizes;
  const int most = std::max(config.full.q_heads, config.window.q_heads);
  for (int size = 1; size <= most; ++size) {
    if (most % size == 0 && size_works(config, size)) sizes.push_back(size);
  }
  return sizes;
}

Status check_shard(const ModelConfig& config, Shard shard) {
  // Listing the sizes costs a pass over all layers for each; only a refusal needs it.
  if (shard.size >= 1 && size_works(config, shard.size)) return check(shard, true, {});
  return check(shard, false, supported_shard_sizes(config));
}

Status check_mtp_shard(const ModelConfig& config, Shard shard) {
  if (shard.size >= 1 && mtp_size_works(config, shard.size)) return check(shard, true, {});
  return check(shard, false, supported_shard_sizes(config));
}

}  // namespace mimo
