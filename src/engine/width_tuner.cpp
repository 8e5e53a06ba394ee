#include "engine/width_tuner.h"

#include <algorithm>

namespace mimo {
namespace {

// A step counts half as much after 34 more.
constexpr double kFade = 0.98;
// Blocks that an average is taken over, once there are so many.
constexpr std::int64_t kBlocks = 64;
// Guess for a draft that was never seen: good, so that it will be seen. It counts as so many blocks: one
// unlucky block at the start must not end drafting.
constexpr double kUnseenRight = 0.9;
constexpr std::int64_t kGuessBlocks = 8;

}  // namespace

void StepCost::add(double rows, double seconds) {
  weight_ = kFade * weight_ + 1;
  rows_ = kFade * rows_ + rows;
  seconds_ = kFade * seconds_ + seconds;
  rows_rows_ = kFade * rows_rows_ + rows * rows;
  rows_seconds_ = kFade * rows_seconds_ + rows * seconds;
  const double mean_rows = rows_ / weight_;
  const double mean_seconds = seconds_ / weight_;
  const double spread = rows_rows_ / weight_ - mean_rows * mean_rows;
  // While all steps have about the same size, the last slope stands and the line moves with the mean.
  if (spread > 0.01 * mean_rows * mean_rows) {
    per_row_ = std::max(0.0, (rows_seconds_ / weight_ - mean_rows * mean_seconds) / spread);
    known_ = true;
  }
  fixed_ = std::max(0.0, mean_seconds - per_row_ * mean_rows);
}

WidthTuner::WidthTuner(int max_drafts)
    : max_drafts_(max_drafts),
      right_(static_cast<std::size_t>(max_drafts), kUnseenRight),
      seen_(static_cast<std::size_t>(max_drafts), 0) {}

int WidthTuner::choose(int batch) {
  ++steps_;
  // The first steps have different sizes, so that their cost can be told apart.
  if (!cost_.known() || !drafted_)
    return steps_ % 3 == 1 ? max_drafts_ : (steps_ % 3 == 2 ? 0 : max_drafts_ / 2);
  const int width = best(batch);
  if (before_probe_ >= 0) {
    probe_interval_ = width == before_probe_ ? std::min(2 * probe_interval_, kLastProbe) : kFirstProbe;
    until_probe_ = probe_interval_;
    before_probe_ = -1;
  }
  if (--until_probe_ > 0) return width;
  before_probe_ = width;
  return width == max_drafts_ ? max_drafts_ / 2 : max_drafts_;
}

int WidthTuner::best(int batch) const {
  int best = 0;
  double best_rate = 0;
  double tokens = 1;
  double survival = 1;
  for (int m = 0; m <= max_drafts_; ++m) {
    if (m > 0) tokens += survival *= right_[static_cast<std::size_t>(m - 1)];
    const double seconds =
        cost_.at(static_cast<double>(batch) * (m + 1)) + (m > 0 ? batch * draft_seconds_ : 0);
    const double rate = tokens / std::max(seconds, 1e-9);
    if (rate > best_rate) {
      best_rate = rate;
      best = m;
    }
  }
  return best;
}

void WidthTuner::record_block(int proposed, int accepted) {
  for (int i = 0; i < std::min({proposed, accepted + 1, max_drafts_}); ++i) {
    const auto at = static_cast<std::size_t>(i);
    const double weight = 1.0 / static_cast<double>(std::min(++seen_[at] + kGuessBlocks, kBlocks));
    right_[at] += weight * ((i < accepted ? 1.0 : 0.0) - right_[at]);
  }
}

void WidthTuner::record_step(int rows, double seconds, int drafted, double draft_seconds) {
  cost_.add(rows, seconds);
  if (drafted == 0) return;
  const double one = draft_seconds / drafted;
  draft_seconds_ = drafted_ ? 0.9 * draft_seconds_ + 0.1 * one : one;
  drafted_ = true;
}

}  // namespace mimo
