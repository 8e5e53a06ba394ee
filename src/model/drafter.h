// What proposes tokens for the target to verify. The engine's loop around it is the same for all drafters:
//
//   step of the target (prefill chunk, or verify of anchor + drafts)  ->  commit  ->  observe()  ->  draft()
//
// A drafter never decides what is emitted: its tokens are proposals, and a failure here switches drafting off
// for one request and nothing else.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "core/result.h"

namespace mimo {

// What a drafter keeps of one request (its context keys and values, or the last hidden states). Made by the
// drafter that uses it, owned by the request, and never shared or reused by another request.
class DraftState {
 public:
  DraftState() = default;
  DraftState(const DraftState&) = delete;
  DraftState& operator=(const DraftState&) = delete;
  virtual ~DraftState() = default;
};

// A part of a DraftState that is worth keeping after its request: what a later request with the same beginning
// needs to draft well from its first token on.
class DraftTail {
 public:
  DraftTail() = default;
  DraftTail(const DraftTail&) = delete;
  DraftTail& operator=(const DraftTail&) = delete;
  virtual ~DraftTail() = default;
  virtual std::size_t bytes() const = 0;
};

// Consecutive rows of one request that the target has run and that are committed: positions [position, position +
// rows). Positions come in order and none twice. Where some were left out, the drafter forgets what is before them
// and goes on with what follows.
struct DraftObservation {
  DraftState* state = nullptr;
  int row_begin = 0;  // in the taps
  int rows = 0;
  std::int64_t position = 0;  // of the first row
  // [rows + 1] tokens at position .. position + rows: those of the rows, and the one that follows (the next
  // prompt token, or the token just sampled: the anchor of the next draft).
  std::span<const std::int32_t> tokens;
};

// One block to draft: the anchor is the newest sampled token, at `position`; it has no keys and values
// anywhere yet, and the position before it has been observed.
struct DraftRequest {
  DraftState* state = nullptr;
  std::int32_t anchor = 0;
  std::int64_t position = 0;
  std::span<std::int32_t> drafts;  // out: tokens for position + 1 ..; 1 to max_drafts() of them
  std::span<float> confidence;     // out, as long as drafts: the drafter's own probability of each
  bool failed = false;             // out: not finite; drafts are not written
};

class Drafter {
 public:
  virtual ~Drafter() = default;
  virtual const char* name() const = 0;  // as --speculative-algorithm spells it
  virtual int max_drafts() const = 0;    // tokens of the longest block
  virtual std::size_t weight_bytes() const = 0;
  virtual std::size_t state_bytes() const = 0;  // of one request, at most

  // Hidden states of the target that observe() wants, as TargetModel numbers them (see TapRows). The same for
  // the life of the drafter.
  virtual std::span<const int> taps() const = 0;
  // Rows before this position do not matter to drafts after `prompt_tokens` tokens: a drafter with a window says
  // so, and the engine leaves their taps out. Observation then begins at that position.
  virtual std::int64_t first_needed(std::int64_t prompt_tokens) const = 0;

  // The state of a new request. `max_tokens`: positions it will ever hold. Fails when memory cannot be had.
  virtual Result<std::unique_ptr<DraftState>> open(std::int64_t max_tokens) = 0;

  // What is needed to draft behind the first `position` tokens of a request that has observed them; null: nothing
  // of use is left, or this drafter keeps none.
  virtual std::shared_ptr<const DraftTail> save(const DraftState& /*state*/,
                                                std::int64_t /*position*/) const {
    return nullptr;
  }
  // Gives a new state what save() has taken from another one at `position`, where observation then begins.
  virtual void restore(DraftState& /*state*/, const DraftTail& /*tail*/) {}
  virtual std::size_t tail_bytes() const { return 0; }  // of one tail, at most

  // taps [rows, taps().size() * hidden]: for each row the tapped states side by side, in the order of taps().
  // Rows that no observation names may hold anything. At most one observation of a state in a call.
  virtual void observe(std::span<const DraftObservation> observations, std::span<const float> taps) = 0;

  // Drafts greedily for all requests together. A request's result depends on its own state only.
  virtual void draft(std::span<DraftRequest> requests) = 0;
};

}  // namespace mimo
