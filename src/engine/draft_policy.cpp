#include "engine/draft_policy.h"

#include <algorithm>

namespace mimo {

int batch_width(std::span<const BatchWidth> widths, int batch, int most) {
  int drafts = most;
  for (const BatchWidth& width : widths) {
    if (width.batch <= batch) drafts = std::min(width.drafts, most);
  }
  return drafts;
}

int drafts_per_request(int decoding, bool prompts_wait, int budget) {
  if (decoding == 0 || budget <= decoding) return 0;
  const int spare = budget - decoding;
  return (prompts_wait ? spare / 2 : spare) / decoding;
}

int confident_prefix(std::span<const float> confidence, double threshold) {
  if (threshold <= 0) return static_cast<int>(confidence.size());
  double survival = 1;
  for (std::size_t i = 0; i < confidence.size(); ++i) {
    survival *= static_cast<double>(confidence[i]);
    if (!(survival >= threshold)) return static_cast<int>(i);
  }
  return static_cast<int>(confidence.size());
}

bool AcceptanceWatch::record(int proposed, int accepted) {
  if (pause_left_ > 0) {
    --pause_left_;
    return false;
  }
  if (proposed == 0 || min_accept_length_ <= 1) return false;
  ++steps_;
  accepted_ += accepted;
  if (steps_ < judged_steps_) return false;
  const double accept_length = 1 + static_cast<double>(accepted_) / steps_;
  steps_ = 0;
  accepted_ = 0;
  if (accept_length >= min_accept_length_) {
    judged_steps_ = kJudgedSteps;
    next_pause_ = kFirstPause;
    return false;
  }
  judged_steps_ = kProbeSteps;
  pause_left_ = next_pause_;
  next_pause_ = std::min(2 * next_pause_, kLongestPause);
  return true;
}

}  // namespace mimo
