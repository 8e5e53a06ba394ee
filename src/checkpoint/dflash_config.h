// dflash/config.json: the geometry of a DFlash drafter and how each of its layers attends (spec dflash 1.3).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/config.h"
#include "core/result.h"

namespace mimo {

struct DFlashConfig {
  int hidden = 0;  // the target's: embedding and head are shared with it
  int intermediate = 0;
  int layers = 0;
  int q_heads = 0;
  int kv_heads = 0;
  int head_dim = 0;     // of queries, keys and values
  int rotary_dims = 0;  // leading dims that are rotated
  float rope_theta = 0;
  float norm_eps = 0;
  float value_scale = 1.0f;           // multiplies V of context and block rows
  bool sinks = false;                 // a learned sink logit per query head in every layer
  int block = 0;                      // rows of a block: the anchor and block - 1 drafts
  int mask_token_id = 0;              // names the mask; its embedding is in mask_embedding.pt
  std::vector<int> target_layer_ids;  // target layers whose output is tapped, in concatenation order

  struct Layer {
    int window = 0;       // context keys of a row; 0: all
    bool causal = false;  // rows of a block see earlier rows only
  };
  std::vector<Layer> attention;  // [layers]

  std::vector<std::string> warnings;  // what was found and does not matter

  // Widest window of the layers; 0 when a layer sees the whole context.
  int widest_window() const;
  // Of the drafter's own tensors: embedding and head are the target's.
  std::uint64_t parameters() const;
  // K and V projections of all layers, which a running drafter holds twice: within Q, K, V for the rows of a
  // block, and side by side for the context.
  std::uint64_t context_parameters() const;
};

// `target`: the config of the model that the drafter drafts for. Wrong, missing and contradictory values are
// refused by key. `what` names the text in messages. Comments and trailing commas are read over: a released
// file has one.
Result<DFlashConfig> parse_dflash_config(std::string_view text, std::string_view what,
                                         const ModelConfig& target);

// DIR/config.json
Result<DFlashConfig> load_dflash_config(const std::string& directory, const ModelConfig& target);

}  // namespace mimo
