// The prompts of a load.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/endpoint.h"
#include "bench/prompt_maker.h"
#include "core/result.h"

namespace mimo {

enum class Dataset : std::uint8_t { kRandom, kRandomIds, kShareGpt, kFile, kSharedPrefix, kAgents };

struct DatasetOptions {
  Dataset dataset = Dataset::kRandom;
  std::string path = {};                           // sharegpt, file
  std::optional<std::int64_t> count = {};          // none: 100, of files all
  std::int64_t input_tokens = 1024;                // random
  std::optional<std::int64_t> output_tokens = {};  // none: 128, of files what they say
  double range_ratio = 0;                          // lengths are uniform in [len (1 - r), len (1 + r)]
  std::uint64_t seed = 0;                          // of lengths, order and content
  std::uint64_t run = 0;  // of content only: another one gives other text of the same shape

  // generated-shared-prefix: count is groups * prompts_per_group.
  std::int64_t groups = 8;
  std::int64_t prompts_per_group = 16;
  std::int64_t system_tokens = 2048;
  std::int64_t question_tokens = 128;

  Endpoint endpoint = Endpoint::kCompletions;
  std::int64_t overhead = 0;  // tokens that the server's chat template adds to a text
};

// Prompts and what they were made from being fixed: the same options give the same prompts. `part` separates
// rounds and warm-ups, whose shapes are drawn alike and whose content differs; files have no parts. `maker` may be
// null for files. Not for agents.
Result<std::vector<LoadPrompt>> make_prompts(const DatasetOptions& options, const PromptMaker* maker,
                                             std::uint64_t part);

// Whether each run can have content of its own.
bool has_own_content(Dataset dataset);

}  // namespace mimo
