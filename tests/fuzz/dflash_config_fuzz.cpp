// Any text as dflash/config.json: an error or a config that keeps its own promises.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "checkpoint/dflash_config.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  mimo::ModelConfig target;
  target.hidden = 256;
  target.layers = 7;
  target.vocab = 1024;
  const auto config = mimo::parse_dflash_config({reinterpret_cast<const char*>(data), size}, "fuzz", target);
  if (!config) {
    if (config.error().message.empty()) std::abort();
    return 0;
  }
  if (config->hidden != 256 || config->q_heads % config->kv_heads != 0 || config->block < 2) std::abort();
  if (config->attention.size() != static_cast<std::size_t>(config->layers)) std::abort();
  if (config->target_layer_ids.empty() || config->rotary_dims % 2 != 0) std::abort();
  for (const int id : config->target_layer_ids) {
    if (id < 0 || id >= target.layers) std::abort();
  }
  for (const auto& layer : config->attention) {
    if (layer.window != 0 && layer.window < config->block) std::abort();
  }
  return 0;
}
