// Finds the number of drafts that makes decoding fastest, from what steps cost and how often drafts are right
// (spec dflash 5.2): the m with the largest (1 + sum of survival up to m) / (time of a step that verifies m).
// All requests together teach it, so that a drafter which does not pay is found out once and not by every
// request again (C31). Times differ from run to run and with them the widths; tokens do not depend on widths.
#pragma once

#include <cstdint>
#include <vector>

namespace mimo {

// Least squares of seconds over rows, old steps fading out: seconds = fixed + per_row * rows.
class StepCost {
 public:
  void add(double rows, double seconds);
  // Steps of different sizes have been seen.
  bool known() const { return known_; }
  double at(double rows) const { return fixed_ + per_row_ * rows; }

 private:
  double weight_ = 0;
  double rows_ = 0;
  double seconds_ = 0;
  double rows_rows_ = 0;
  double rows_seconds_ = 0;
  double fixed_ = 0;
  double per_row_ = 0;
  bool known_ = false;
};

class WidthTuner {
 public:
  // Between steps of another width than the best one, which keep what is known up to date. Doubles while they
  // change nothing.
  static constexpr int kFirstProbe = 32;
  static constexpr int kLastProbe = 512;

  explicit WidthTuner(int max_drafts);

  // Drafts for each of the `batch` requests of the next step. Called once a step.
  int choose(int batch);

  // One verified block, `proposed` at least 1.
  void record_block(int proposed, int accepted);
  // One step of decoding requests alone: `rows` of the target in `seconds` (with what the drafter does with
  // them), after drafting for `drafted` requests in `draft_seconds`.
  void record_step(int rows, double seconds, int drafted, double draft_seconds);

  // The best width by what is known now.
  int best(int batch) const;

 private:
  int max_drafts_;
  std::int64_t steps_ = 0;
  StepCost cost_;
  double draft_seconds_ = 0;  // of one request, average
  bool drafted_ = false;
  std::vector<double> right_;       // [i]: draft i + 1 is right where the drafts before it were
  std::vector<std::int64_t> seen_;  // [i]: how often that was seen
  int until_probe_ = kFirstProbe;
  int probe_interval_ = kFirstProbe;
  int before_probe_ = -1;
};

}  // namespace mimo
