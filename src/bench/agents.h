// Conversations of several turns that run side by side: an agent sends its next turn when its last answer is complete.
#pragma once

#include <cstdint>
#include <functional>

#include "bench/load_run.h"
#include "bench/load_target.h"

namespace mimo {

struct AgentsOptions {
  int agents = 20;
  int turns = 3;
  std::int64_t shared_tokens = 2000;  // with which every first turn begins
  std::int64_t first_tokens = 38000;  // prompt of the first turn, those included
  std::int64_t growth_tokens = 1000;  // of the prompt from turn to turn, the answer in it included
  std::int64_t output_tokens = 200;   // of each answer
  std::uint64_t seed = 0;
  std::uint64_t run = 0;  // another one: other text of the same shape
  std::int64_t overhead = 0;
};

// Prompt tokens that have to be computed if nothing is computed twice.
std::int64_t ideal_prefill(const AgentsOptions& options);

// On completions turns are token ids, else messages. Records are by agent, then by turn; after a failure an agent says
// no more, and the turns that are missing count as failed.
LoadResult run_agents(LoadTarget& target, const RequestStyle& style, const AgentsOptions& options,
                      const std::function<void(const SentRequest&)>& ended = {});

}  // namespace mimo
