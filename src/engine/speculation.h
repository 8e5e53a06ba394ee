// The drafting side of generation: asks the drafter for blocks, decides how much of them is verified, and
// keeps a drafter that fails or does not help away from the requests it would slow down. Nothing here can
// change a token that a request gets.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "engine/draft_policy.h"
#include "engine/pending_taps.h"
#include "engine/speculation_options.h"
#include "engine/speculation_stats.h"
#include "engine/verify_block.h"
#include "engine/width_tuner.h"
#include "model/drafter.h"

namespace mimo {

using LogLine = std::function<void(std::string_view line)>;

// Verify steps after which a drafter that was almost never right is reported (C28), and the accept length
// below which it is.
inline constexpr std::int64_t kSuspiciousSteps = 50;
inline constexpr double kSuspiciousAcceptLength = 1.05;

// What speculation keeps of one request, from its first row to its end.
struct RequestDrafts {
  RequestDrafts(double min_accept_length, TapBuffers& buffers) : pending(buffers), watch(min_accept_length) {}

  std::size_t index = 0;              // of the request, for messages
  std::unique_ptr<DraftState> state;  // null: not drafted for, now and later
  std::int64_t first_needed = 0;      // position of the first row to observe
  PendingTaps pending;                // committed rows that the state has not been shown
  AcceptanceWatch watch;
  std::vector<std::int32_t> drafts;  // of the step in flight: exactly those that are verified
  std::vector<float> confidence;     // of all that were drafted
  SpeculationStats stats;
};

// A request that decodes in the coming step.
struct DraftTurn {
  RequestDrafts* drafts = nullptr;
  std::int32_t anchor = 0;
  std::int64_t position = 0;   // of the anchor
  std::int64_t remaining = 0;  // tokens that the request may still emit, at least 1
};

// Rows of one request that a step has committed: positions [position, position + rows). The engine hands over
// every committed row from `first_needed` on, in order.
struct CommittedRows {
  RequestDrafts* drafts = nullptr;
  int row_begin = 0;  // in the rows of the step, which are those of the taps
  int rows = 0;
  std::int64_t position = 0;
  std::span<const std::int32_t> tokens;  // [rows + 1]: of the rows, and the one that follows
};

// Rounds in a row without drafts after which nothing is expected soon: committed rows then wait in PendingTaps
// instead of being shown to the drafter at every step.
inline constexpr int kIdleRounds = 4;
// Most rows that wait for one request: enough to draft from while the drafter's window refills, and 20 MB in the
// family's sizes.
inline constexpr int kPendingRows = 256;
// Requests that a probe drafts for where no drafts are the best: enough to learn whether they are right.
inline constexpr int kProbedRequests = 4;

class Speculation {
 public:
  // `drafter` must outlive it. `vocab` and `hidden` are the target's; no draft leaves the former. The options
  // have passed validate().
  // `ops` is the backend of both.
  Speculation(Drafter& drafter, Ops& ops, const SpeculationOptions& options, int vocab, int hidden,
              LogLine log);

  // Begins a request of `prompt` tokens that will hold at most `most` tokens. Where its state cannot be had,
  // it runs without drafts. Speculation must outlive what it returns.
  std::unique_ptr<RequestDrafts> open(std::size_t index, std::int64_t prompt, std::int64_t most);

  // What is worth keeping of the request behind its first `position` tokens; null: nothing, or not all before
  // them has been shown to the drafter.
  std::shared_ptr<const DraftTail> save(const RequestDrafts& request, std::int64_t position) const;
  // A request that has just been opened and begins behind `position` cached tokens, with what was kept there.
  void restore(RequestDrafts& request, const DraftTail& tail, std::int64_t position);

  // Fills `drafts` of every turn with at most `most` tokens, and so that a block never reaches beyond what its
  // request may emit. `decoding`: requests that decode in the step, with those that are not drafted for.
  void draft(std::span<const DraftTurn> turns, int decoding, int most);

  // The outcome of a decoding step of the request.
  void record(RequestDrafts& request, const BlockResult& block);
  // A step that held decoding requests alone: its rows, and the seconds of the target and of observing.
  void record_step(int rows, double seconds);

  std::span<const int> taps() const { return drafter_.taps(); }
  // What a step has committed, with its taps [rows of the step, taps().size() * hidden]. Shown to the drafter at
  // once where drafts are expected, else kept until a draft is wanted.
  void observe(std::span<const CommittedRows> committed, std::span<const float> taps);

  // Over all requests since it was made.
  const SpeculationStats& pooled() const { return pooled_; }

 private:
  int choose_width(int decoding, int most);
  bool waits(const RequestDrafts& request) const;
  void show_pending(std::span<const DraftTurn> turns);
  void forget(RequestDrafts& request);
  bool check(const DraftTurn& turn, const DraftRequest& made);
  void stop(RequestDrafts& request, std::string_view why);
  void suspect();

  Drafter& drafter_;
  SpeculationOptions options_;
  int vocab_;
  TapBuffers tap_buffers_;
  LogLine log_;
  SpeculationStats pooled_;
  std::int64_t suspect_steps_ = 0;     // verify steps since the last look
  std::int64_t suspect_accepted_ = 0;  // drafts accepted in them
  bool warned_ = false;
  std::optional<WidthTuner> tuner_;
  int idle_rounds_ = 0;           // the last rounds, probes not counted, that were to draft nothing
  std::size_t first_probed_ = 0;  // turn at which a probe of a few requests begins
  double draft_seconds_ = 0;      // of the last round
  std::vector<DraftRequest> requests_;
  std::vector<std::size_t> turn_of_;  // [requests_]
  std::vector<DraftObservation> observations_;
  BackendArray<float> pending_taps_;
};

}  // namespace mimo
