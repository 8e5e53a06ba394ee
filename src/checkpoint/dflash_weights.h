// The tensors of a DFlash drafter (spec dflash 1.4), found, checked and handed out as views.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/dflash_config.h"
#include "checkpoint/safetensors_set.h"
#include "core/huge_buffer.h"
#include "core/result.h"
#include "core/weight_view.h"

namespace mimo {

struct DFlashLayerWeights {
  std::vector<float> input_norm;  // [hidden]
  std::vector<float> post_norm;   // [hidden]
  std::vector<float> q_norm;      // [head_dim]
  std::vector<float> k_norm;      // [head_dim]
  std::vector<float> sinks;       // [q_heads]; empty when the config has none
  WeightView qkv;                 // rows [Q | K | V]: (q_heads + 2 * kv_heads) * head_dim
  WeightView o_proj;              // [hidden, q_heads * head_dim]
  WeightView gate;                // [intermediate, hidden]
  WeightView up;                  // [intermediate, hidden]
  WeightView down;                // [hidden, intermediate]
};

// Owns the maps, or the memory, that its views point into.
class DFlashWeights {
 public:
  // DIR/model.safetensors.index.json, or DIR/dflash_draft_model.safetensors, or DIR/model.safetensors. Every
  // tensor of the config must be there as BF16 with its shape, and no other: one that is missing, unexpected
  // or different is an error naming it (a lost sink tensor costs acceptance and nothing else would tell).
  static Result<DFlashWeights> open(const std::string& directory, const DFlashConfig& config);
  // Random weights of the config, for measurements: as fill_random makes them.
  static Result<DFlashWeights> random(const DFlashConfig& config, std::uint64_t seed);

  WeightView fc;                   // [hidden, taps * hidden]
  std::vector<float> hidden_norm;  // [hidden], on fc's output
  std::vector<float> norm;         // [hidden], before the head
  std::vector<DFlashLayerWeights> layers;
  // K and V rows of all layers for the context: [layers][K | V] = [layers * 2 * kv_heads * head_dim, hidden].
  WeightView context_kv;

 private:
  DFlashWeights() = default;
  std::optional<SafetensorsSet> set_;
  std::optional<SafetensorsFile> file_;
  std::optional<HugeBuffer> generated_;
};

}  // namespace mimo
