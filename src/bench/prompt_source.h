// Prompts of a given length, one after the other.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "bench/endpoint.h"
#include "bench/load_target.h"
#include "core/result.h"

namespace mimo {

// A prompt of exactly `tokens` tokens; `which` tells those of one length apart.
using PromptSource = std::function<Result<LoadPrompt>(std::int64_t tokens, int which)>;

struct PromptSourceOptions {
  Endpoint endpoint = Endpoint::kCompletions;
  // Prompts are pieces of this text, begun anywhere (completions only); empty: random ids, or words on endpoints that
  // take text.
  std::string text_file = {};
  std::uint64_t seed = 0;
  std::uint64_t run = 0;  // another one: other prompts
};

// Asks the server what its chat template adds. `target` must outlive the source.
Result<PromptSource> make_prompt_source(LoadTarget& target, const RequestStyle& style,
                                        const PromptSourceOptions& options);

}  // namespace mimo
