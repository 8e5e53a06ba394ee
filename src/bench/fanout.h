// `mimo bench fanout`: more conversations than the server has slots, and whether it computes anything twice.
#pragma once

#include <string>

#include "bench/agents.h"
#include "bench/load_summary.h"
#include "bench/server_counters.h"

namespace mimo {

struct FanoutResult {
  LoadResult load;
  LoadSummary summary;
  ServerWork work;
  std::int64_t ideal = 0;  // prompt tokens to compute, if nothing is computed twice

  // Prompt tokens that were not cached when their request began.
  std::int64_t prefilled() const { return summary.n_in - summary.n_cached; }
  double ratio() const { return static_cast<double>(prefilled()) / static_cast<double>(ideal); }
};

// `options` without the overhead of the template, which is asked for.
Result<FanoutResult> run_fanout(LoadTarget& target, const RequestStyle& style, AgentsOptions options,
                                const std::function<void(const SentRequest&)>& ended);

json::object fanout_json(const FanoutResult& result);
std::string fanout_text(const FanoutResult& result);

}  // namespace mimo
