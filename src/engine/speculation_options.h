// How many drafts a step verifies. These options steer work only: no value of any of them changes a token.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "core/result.h"

namespace mimo {

// From `batch` decoding requests on, each verifies at most `drafts` drafts.
struct BatchWidth {
  int batch = 1;
  int drafts = 0;
  bool operator==(const BatchWidth&) const = default;
};

struct SpeculationOptions {
  int num_draft_tokens = 0;  // most drafts a step, not counting the anchor; 0: all that the drafter makes
  std::vector<BatchWidth> batch_widths = {};  // batches ascending; empty: the same at every batch size
  // Fewer drafts than the above where they would not pay, by measured times and acceptance (see WidthTuner).
  bool tune_width = false;
  // The verified prefix ends before the first draft at which the product of the drafter's probabilities falls
  // below this; 0: never.
  double confidence_threshold = 0;
  // A request is not drafted for once it has this many tokens, prompt included; 0: no limit.
  std::int64_t max_context = 0;
  // A request whose accept length over kJudgedSteps steps is below this drafts nothing for a while; 1 or
  // less: never.
  double min_accept_length = 1.3;
};

// "1:7,4:5,16:3,32:0": pairs BATCH:DRAFTS with ascending batches. Names the pair that is wrong.
Result<std::vector<BatchWidth>> parse_batch_widths(std::string_view text);

// Ranges; `max_drafts` is the drafter's. Names the option as the command line spells it.
Status validate(const SpeculationOptions& options, int max_drafts);

}  // namespace mimo
