// Sends prompts at a pace and collects what came of them.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "bench/endpoint.h"
#include "bench/load_client.h"
#include "bench/sent_request.h"

namespace mimo {

struct Pace {
  int max_concurrency = 0;                                // requests in flight; 0: no bound
  double rate = std::numeric_limits<double>::infinity();  // a second; infinite: all are due at once
  double burstiness = 1;
  std::uint64_t seed = 0;
};

struct LoadResult {
  std::vector<SentRequest> records;  // in the order of the prompts
  ClientCost cost;
};

// `ended` is called after each request.
LoadResult run_load(LoadClient& client, const RequestStyle& style, std::span<const LoadPrompt> prompts,
                    const Pace& pace, const std::function<void(const SentRequest&)>& ended = {});

}  // namespace mimo
