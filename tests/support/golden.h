// Golden data of tests/golden: one safetensors file of reference outputs beside each small checkpoint.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/result.h"

namespace mimo {

struct Golden {
  std::vector<std::int32_t> input_ids;         // [tokens]
  std::vector<float> logits;                   // [tokens, vocab]
  std::vector<std::int32_t> hidden_positions;  // [positions]
  std::vector<float> hidden_states;            // [layers + 1, positions, hidden]
  std::vector<std::int32_t> greedy_ids;        // prompt, then continuation
  int greedy_prompt_len = 0;
};

// tests/golden/NAME
std::string golden_directory(const std::string& name);
Result<Golden> load_golden(const std::string& directory);

}  // namespace mimo
