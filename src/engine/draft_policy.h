// How many drafts one request gets in its next step.
#pragma once

#include <cstdint>
#include <span>

#include "engine/speculation_options.h"

namespace mimo {

// Verify steps over which the accept length of a request is judged: enough that a hard sentence does not
// decide, few enough that a drafter which does not suit a text costs little.
inline constexpr int kJudgedSteps = 50;
// After a pause fewer steps decide: the drafter has failed once already.
inline constexpr int kProbeSteps = 16;
// Decoding steps of the first pause. Each one that the probe after it confirms is twice as long as the last.
inline constexpr int kFirstPause = 64;
inline constexpr int kLongestPause = 1024;

// Drafts for each of `batch` decoding requests by the table, at most `most`.
int batch_width(std::span<const BatchWidth> widths, int batch, int most);

// Drafts that each of `decoding` requests can have in a step of `budget` rows. Every request keeps the row of
// its anchor, and prompts that wait keep half of the rest.
int drafts_per_request(int decoding, bool prompts_wait, int budget);

// Drafts before the first at which the product of confidences falls below `threshold`. What is not a number
// counts as 0.
int confident_prefix(std::span<const float> confidence, double threshold);

// Stops the drafting of a request that gains nothing from it, and tries again later.
class AcceptanceWatch {
 public:
  explicit AcceptanceWatch(double min_accept_length) : min_accept_length_(min_accept_length) {}

  bool paused() const { return pause_left_ > 0; }
  // One decoding step of the request. True: this one began a pause.
  bool record(int proposed, int accepted);

 private:
  double min_accept_length_;
  int judged_steps_ = kJudgedSteps;  // of the judgement under way
  int next_pause_ = kFirstPause;
  int pause_left_ = 0;
  int steps_ = 0;
  int accepted_ = 0;
};

}  // namespace mimo
