// Finds the number of drafts that makes decoding fastest, from what steps cost and how often drafts are right
// (spec dflash 5.2): the m with the largest (1 + sum of survival up to m) / (time of a step that verifies m).
// All requests together teach it, so that a drafter which does not pay is found out once and not by every
// request again (C31). Times differ from run to run and with them the widths; tokens do not depend on widths.
#pragma once

#include <cstdint>
#include <vector>

namespace mimo {

// What a step of so many rows takes when nothing holds it up: the shortest of the last steps of each size, and
// straight lines between sizes. A step that waited for a CPU says nothing about the others.
class StepCost {
 public:
  void add(int rows, double seconds);
  // Two sizes have been seen often enough that neither is a cold or a held-up step.
  bool known() const;
  // 0 while nothing has been seen.
  double at(double rows) const;

 private:
  static constexpr std::size_t kKept = 8;

  struct Size {
    int rows = 0;
    std::vector<double> last;  // at most kKept
    std::size_t next = 0;      // of `last`, to be replaced
    double lowest() const;
  };

  std::vector<Size> sizes_;  // ascending
};

class WidthTuner {
 public:
  // Between steps of another width than the best one, which keep what is known up to date. Doubles while they
  // change nothing.
  static constexpr int kFirstProbe = 8;
  static constexpr int kLastProbe = 512;
  // Where no drafts are the best, only one probe in so many is a whole step, which measures its cost; for the others
  // a few requests do, which tell whether drafts are right.
  static constexpr int kWholeProbes = 4;

  explicit WidthTuner(int max_drafts);

  // Drafts pay when they promise this much more than none: the estimates are no better, and drafting has costs that
  // are not in them (the contexts of prompts).
  static constexpr double kLeastGain = 1.05;

  // Drafts for each of the `batch` requests of the next step. Called once a step.
  int choose(int batch);
  // Of the last choice: whether it was a probe, and one that a few of the requests are enough for.
  bool probing() const { return before_probe_ >= 0; }
  bool probes_few() const { return probing() && probes_few_; }

  // One verified block, `proposed` at least 1.
  void record_block(int proposed, int accepted);
  // One step of decoding requests alone: `rows` of the target in `seconds` (with what the drafter does with
  // them), after drafting for `drafted` requests in `draft_seconds`.
  void record_step(int rows, double seconds, int drafted, double draft_seconds);

  // The best width by what is known now.
  int best(int batch) const;

 private:
  int max_drafts_;
  StepCost cost_;
  StepCost draft_cost_;             // "rows" are requests drafted for
  std::vector<double> right_;       // [i]: draft i + 1 is right where the drafts before it were
  std::vector<std::int64_t> seen_;  // [i]: how often that was seen
  std::int64_t blocks_ = 1;         // that right_ is averaged over
  int until_probe_ = kFirstProbe;
  int probe_interval_ = kFirstProbe;
  int before_probe_ = -1;
  int probes_ = 0;
  bool probes_few_ = false;
  int plain_rounds_ = 0;  // left of a probe without drafts
  int plain_steps_ = 0;   // measured in it
  int explored_ = 0;      // steps so far that were to learn costs
};

}  // namespace mimo
