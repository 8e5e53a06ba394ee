// Timing of whole steps with a drafter, as an engine runs them: drafts for every sequence, one forward pass that
// verifies them, and the accepted rows shown to the drafter.
#pragma once

#include <memory>
#include <vector>

#include "core/result.h"
#include "engine/bench_sequences.h"
#include "model/drafter.h"
#include "ops/backend_array.h"

namespace mimo {

// Seconds, medians.
struct DraftStepTimes {
  double draft = 0;    // of one call each, waited for
  double verify = 0;   // forward pass over anchor and drafts, with the states that the drafter reads
  double observe = 0;  // of the accepted rows
  double step = 0;     // all three, without waiting in between
};

class DraftBench {
 public:
  struct Options {
    int steps = 16;  // of a repeat
    int repeats = 5;
    int context_rows = 256;  // rows of context that the drafter is shown at a time
  };

  // Nothing drafted by random weights, or for random tokens, is ever accepted, so that acceptance is made up: sequences
  // go on by 2 to 6 tokens (no more than a block has), each by each number in turn. The tokens verified are random ones
  // instead of the drafts: equal rows would choose equal experts. `sequences` have room for positions up to
  // room_needed() behind the deepest context; everything must outlive this.
  DraftBench(Drafter& drafter, Ops& ops, BenchSequences& sequences, int hidden, const Options& options);

  static std::int64_t room_needed(const Drafter& drafter, int steps);
  static constexpr int kFewestAccepted = 2;
  static constexpr int kMostAccepted = 6;

  // Steps of the first `count` sequences after `depth` tokens of context, of which the drafter has seen what it wants.
  Result<DraftStepTimes> run(std::int64_t depth, int count);

 private:
  Status begin(std::int64_t depth, int count);
  void draft();
  void verify();
  void observe(int step);
  void wait();

  Drafter& drafter_;
  Ops& ops_;
  BenchSequences& sequences_;
  Options options_;
  int block_;
  std::size_t width_;  // of a row of taps
  BackendArray<float> taps_;
  std::size_t tap_rows_ = 0;

  std::vector<std::unique_ptr<DraftState>> states_;
  std::vector<std::int32_t> anchors_;
  std::vector<std::int64_t> positions_;  // of the anchors
  std::vector<std::int32_t> drafts_;
  std::vector<float> confidence_;
  std::vector<std::int32_t> tokens_;
  std::vector<DraftRequest> requests_;
  std::vector<DraftObservation> observations_;
  bool failed_ = false;
};

}  // namespace mimo
