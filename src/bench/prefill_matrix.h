// `mimo bench prefill`: prompts of each length at each concurrency, one output token.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "bench/load_summary.h"
#include "bench/load_target.h"
#include "bench/prompt_source.h"

namespace mimo {

struct PrefillOptions {
  std::vector<std::int64_t> lengths = {1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072};
  std::vector<int> concurrencies = {1, 2, 4, 8, 16, 32};
  int prompts = 0;               // of a cell; 0: 4 times the concurrency, at least 8
  std::int64_t pool_tokens = 0;  // cells that need more are left out; 0: not known
  std::int64_t context = 0;      // longest request; 0: not known
  int gpus = 1;
};

struct PrefillCell {
  std::int64_t length = 0;
  int concurrency = 0;
  std::string skipped;  // why it was not run: "pool", "context"
  LoadSummary summary;
  double rate = 0;  // uncached prompt tokens a second
  std::vector<SentRequest> records;
};

std::vector<PrefillCell> run_prefill_matrix(LoadTarget& target, const RequestStyle& style,
                                            const PrefillOptions& options, const PromptSource& prompts,
                                            const std::function<void(const PrefillCell&)>& ended);

json::object prefill_json(const PrefillCell& cell, int gpus);
std::string prefill_head();
std::string prefill_line(const PrefillCell& cell, int gpus);

}  // namespace mimo
