#include "engine/width_tuner.h"

#include <algorithm>

namespace mimo {
namespace {

// Steps of a size before it counts as known: the first may be cold.
constexpr std::size_t kEnough = 3;
// Sizes closer than this are one: a server's batches have any number of rows.
constexpr double kSameSize = 1.05;
// Blocks that an average is taken over, once there are so many, and steps of a large batch.
constexpr std::int64_t kBlocks = 64;
constexpr std::int64_t kBlockSteps = 4;
// Guess for a draft that was never seen: good, so that it will be seen. It counts as so many blocks: one
// unlucky block at the start must not end drafting.
constexpr double kUnseenRight = 0.9;
constexpr std::int64_t kGuessBlocks = 8;
// A probe without drafts goes on until so many steps of decoding requests alone were measured, since the cost of a
// plain step is what all else is compared with, but for no more rounds than the other.
constexpr int kPlainSteps = 3;
constexpr int kPlainRounds = 8;

}  // namespace

double StepCost::Size::lowest() const { return *std::min_element(last.begin(), last.end()); }

void StepCost::add(int rows, double seconds) {
  auto at = std::find_if(sizes_.begin(), sizes_.end(),
                         [&](const Size& size) { return size.rows * kSameSize >= rows; });
  if (at == sizes_.end() || at->rows > rows * kSameSize) {
    at = sizes_.emplace(at);
    at->rows = rows;
  }
  if (at->last.size() < kKept) {
    at->last.push_back(seconds);
  } else {
    at->last[at->next] = seconds;
    at->next = (at->next + 1) % kKept;
  }
}

bool StepCost::known() const {
  return std::count_if(sizes_.begin(), sizes_.end(),
                       [](const Size& size) { return size.last.size() >= kEnough; }) >= 2;
}

double StepCost::at(double rows) const {
  if (sizes_.empty()) return 0;
  // A step never costs more than one with more rows: the shorter time is the truer one.
  std::vector<double> cost(sizes_.size());
  double above = sizes_.back().lowest();
  for (std::size_t i = sizes_.size(); i-- > 0;) cost[i] = above = std::min(above, sizes_[i].lowest());
  if (sizes_.size() == 1) return cost[0] * std::max(1.0, rows / sizes_[0].rows);
  const auto next =
      std::find_if(sizes_.begin(), sizes_.end(), [&](const Size& size) { return size.rows >= rows; });
  const auto right =
      static_cast<std::size_t>(std::clamp<std::ptrdiff_t>(next - sizes_.begin(), 1, std::ssize(sizes_) - 1));
  const double from = sizes_[right - 1].rows;
  const double slope = (cost[right] - cost[right - 1]) / (sizes_[right].rows - from);
  // Below the smallest size the line may not fall under that size's cost a row.
  return std::max(cost[right - 1] + slope * (rows - from), cost[0] * std::min(1.0, rows / sizes_[0].rows));
}

WidthTuner::WidthTuner(int max_drafts)
    : max_drafts_(max_drafts),
      right_(static_cast<std::size_t>(max_drafts), kUnseenRight),
      seen_(static_cast<std::size_t>(max_drafts), 0) {}

int WidthTuner::choose(int batch) {
  blocks_ = std::max(kBlocks, kBlockSteps * batch);
  // The first steps have different sizes, so that their cost can be told apart; a plain step behind a wide one is
  // slower than the next.
  if (!cost_.known()) return explored_++ % 3 == 0 ? max_drafts_ : 0;
  const int width = best(batch);
  if (plain_rounds_ > 0 && --plain_rounds_ > 0 && plain_steps_ < kPlainSteps) return 0;
  if (before_probe_ >= 0) {
    probe_interval_ = width == before_probe_ ? std::min(2 * probe_interval_, kLastProbe) : kFirstProbe;
    until_probe_ = probe_interval_;
    before_probe_ = -1;
  }
  if (--until_probe_ > 0) return width;
  before_probe_ = width;
  ++probes_;
  probes_few_ = width == 0 && probes_ % kWholeProbes != 0;
  // In turn steps without drafts and another width.
  if (width > 0 && probes_ % 2 == 1) {
    plain_rounds_ = kPlainRounds;
    plain_steps_ = 0;
    return 0;
  }
  plain_rounds_ = 0;
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
        cost_.at(static_cast<double>(batch) * (m + 1)) + (m > 0 ? draft_cost_.at(batch) : 0);
    const double rate = tokens / std::max(seconds, 1e-9);
    if (rate > best_rate * (best == 0 && m > 0 ? kLeastGain : 1.0)) {
      best_rate = rate;
      best = m;
    }
  }
  return best;
}

void WidthTuner::record_block(int proposed, int accepted) {
  for (int i = 0; i < std::min({proposed, accepted + 1, max_drafts_}); ++i) {
    const auto at = static_cast<std::size_t>(i);
    const double weight = 1.0 / static_cast<double>(std::min(++seen_[at] + kGuessBlocks, blocks_));
    right_[at] += weight * ((i < accepted ? 1.0 : 0.0) - right_[at]);
  }
}

void WidthTuner::record_step(int rows, double seconds, int drafted, double draft_seconds) {
  ++plain_steps_;
  cost_.add(rows, seconds);
  if (drafted > 0) draft_cost_.add(drafted, draft_seconds);
}

}  // namespace mimo
