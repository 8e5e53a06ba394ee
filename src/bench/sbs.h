// `mimo bench sbs`: prefill and decode of one and of several streams side by side, decode as the difference of two
// lengths of answer on a warm prefix, which cancels prefill, HTTP, tokenization and start effects.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "bench/load_run.h"
#include "bench/load_target.h"
#include "bench/prompt_source.h"

namespace mimo {

struct SbsOptions {
  std::vector<std::int64_t> contexts = {46'000};  // prompt tokens
  std::vector<int> streams = {1, 4};
  std::int64_t short_answer = 16;
  std::int64_t long_answer = 400;
  int repeats = 5;
  std::int64_t page = 128;  // of the server: so much of a prompt more may be computed again
};

// Rates are tokens a second.
struct SbsRow {
  std::int64_t context = 0;
  int streams = 0;
  std::string error;            // not empty: the row says nothing
  double prefill_nominal = 0;   // prompt tokens / time
  double prefill_uncached = 0;  // those that were not cached
  double ttft = 0;              // mean seconds to the only token of a cold request
  double decode = 0;            // of all streams together: from the medians
  double decode_low = 0;        // of the repeats
  double decode_high = 0;
  bool cache_checked = false;  // the server said that the prefix was warm
  std::vector<SentRequest> records;
};

std::vector<SbsRow> run_sbs(LoadTarget& target, const RequestStyle& style, const SbsOptions& options,
                            const PromptSource& prompts, const std::function<void(const SbsRow&)>& ended);

json::object sbs_json(const SbsRow& row);
// Head of the table, and a line of it.
std::string sbs_head();
std::string sbs_line(const SbsRow& row);

}  // namespace mimo
