// What structured output asks of an answer: which tokens may come next. The state machine behind it walks with
// the answer, token by token, and can walk back (a verified block of drafts is looked at before it is accepted).
#pragma once

#include <cstdint>
#include <memory>
#include <span>

namespace mimo {

class Constraint {
 public:
  virtual ~Constraint() = default;

  // Sets bit i % 32 of mask[i / 32] for each token i that may come next, clears the others. `mask` has
  // ceil(vocab / 32) words. False: every token may come next, and the mask is not written. End tokens of the
  // model are allowed exactly when the answer is complete.
  virtual bool fill_mask(std::span<std::uint32_t> mask) = 0;

  // Takes a token. False: it was not allowed, and nothing has changed.
  virtual bool accept(std::int32_t token) = 0;

  // Takes back the last `tokens` accepted tokens.
  virtual void rollback(int tokens) = 0;

  // The answer is complete: only an end token may follow.
  virtual bool done() const = 0;
};

// A compiled schema or grammar: shared by requests, safe to use from several threads.
class CompiledConstraint {
 public:
  virtual ~CompiledConstraint() = default;
  // A new walk from the beginning.
  virtual std::unique_ptr<Constraint> start() const = 0;
};

}  // namespace mimo
