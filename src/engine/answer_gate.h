// Which tokens an answer may continue with: the constraint of structured output, which covers the answer and not
// the reasoning before it, and the budget of the reasoning.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/engine_client.h"
#include "text/constraint.h"

namespace mimo {

class AnswerGate {
 public:
  // `vocab`: ids that may be sampled. The request must outlive the gate.
  AnswerGate(const EngineRequest& request, std::span<const int> eos_ids, int vocab);

  // Bits of the tokens that may come next, one for each id below vocab; empty: all of them. Valid until the
  // next call.
  std::span<const std::uint32_t> mask();

  // Takes the token that came.
  void accept(std::int32_t token);

  // The constraint is met and allows nothing but an end token: min_tokens gives way to it.
  bool must_end() const { return constraint_ && !waiting_ && !undecided_ && constraint_->done(); }

  bool in_think() const { return in_think_; }
  std::int64_t reasoning_tokens() const { return reasoning_tokens_; }

 private:
  bool budget_spent() const;
  void allow_all();
  void set(std::int32_t token, bool allowed);

  const EngineRequest& request_;
  std::vector<int> eos_ids_;
  int vocab_;
  std::unique_ptr<Constraint> constraint_;  // null: none
  bool waiting_ = false;                    // for the end of reasoning
  bool undecided_ = false;                  // the first token may open a think block
  bool in_think_ = false;
  std::int64_t tokens_ = 0;
  std::int64_t reasoning_tokens_ = 0;
  std::vector<std::uint32_t> mask_;
};

}  // namespace mimo
