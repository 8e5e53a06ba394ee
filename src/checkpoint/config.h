// config.json of the MiMo-V2 family, as one checked struct. Nothing else in the program reads config.json.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.h"
#include "core/weight_view.h"

namespace mimo {

enum class LayerKind : std::uint8_t { kFull, kWindow };

// Attention of one layer kind (spec model 1.2, 2.1).
struct AttentionShape {
  int q_heads = 0;
  int kv_heads = 0;
  int qk_dim = 0;        // width of a query or key head (192)
  int v_dim = 0;         // width of a value head (128)
  int rotary_dims = 0;   // leading dims that are rotated: int(qk_dim * partial_rotary_factor) (64)
  float rope_theta = 0;  // base of the rotary frequencies
  int window = 0;        // keys a query sees, itself included; 0: all
  bool sink = false;     // learned sink logit per query head
};

struct ModelConfig {
  std::string architecture;  // "MiMoV2ForCausalLM" or "MiMoV2FlashForCausalLM"
  std::string model_type;    // "mimo_v2" or "mimo_v2_flash"
  std::string member;        // "V2-Flash", "V2.5", "V2.6-Flash", ..., or "custom" for other shapes

  int hidden = 0;
  int layers = 0;
  int vocab = 0;             // rows of embedding and lm_head (more than the tokenizer has)
  int intermediate = 0;      // dense MLP
  int moe_intermediate = 0;  // one expert
  int experts = 0;           // 0: no MoE layer
  int top_k = 0;
  bool norm_topk_prob = true;
  float routed_scaling = 1.0f;

  std::vector<LayerKind> layer_kinds;  // [layers]
  std::vector<bool> layer_is_moe;      // [layers]
  AttentionShape full;
  AttentionShape window;
  float value_scale = 1.0f;  // multiplies V before the cache
  float norm_eps = 0;

  bool fused_qkv = false;
  int qkv_chunks = 1;  // chunks of the fused matrix: the full layers' KV-head count (spec model 3.4)

  WeightFormat dense_format = WeightFormat::kBF16;   // qkv, dense MLP
  WeightFormat expert_format = WeightFormat::kBF16;  // routed experts
  WeightFormat router_format = WeightFormat::kF32;   // as declared; the stored dtype decides
  std::vector<std::string> unquantized;              // quantization_config.ignored_layers

  std::int64_t max_positions = 0;
  int mtp_heads = -1;              // -1: not declared, count the tensors
  std::vector<int> eos_token_ids;  // config.json and generation_config.json together
  int bos_token_id = -1;
  int pad_token_id = -1;

  std::vector<std::string> warnings;  // keys this program does not know; shown by `mimo inspect`

  const AttentionShape& attention(int layer) const {
    return layer_kinds[static_cast<std::size_t>(layer)] == LayerKind::kFull ? full : window;
  }
};

// Reads the hub's field names and those transformers 5 writes. Unknown or contradictory values are refused by
// field name; fields that do not touch the text model are ignored. `what` names the text in messages.
Result<ModelConfig> parse_config(std::string_view text, std::string_view what);

// DIR/config.json, plus the stop ids of DIR/generation_config.json when that file exists.
Result<ModelConfig> load_config(const std::string& directory);

}  // namespace mimo
