// An automaton over the tokens of a vocabulary: the constraint that the engine asks for masks.
//
// A mask is put together from parts. For each state of the automaton, the tokens that its rule takes whole are
// looked up once and kept; tokens that leave the rule on their way depend on what called it, and only they are
// walked again, from the byte where they leave.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "text/constraint.h"
#include "text/grammar/automaton.h"
#include "text/grammar/vocabulary.h"
#include "text/grammar/walk.h"

namespace mimo::grammar {

// What can follow a state inside its rule.
struct StateTokens {
  std::vector<std::uint32_t> mask;   // one bit per token; empty where a list is shorter
  std::vector<std::int32_t> tokens;  // instead of a mask
  // Nodes of the vocabulary's tree at which the rule may end while tokens go on.
  std::vector<std::uint32_t> exits;

  std::size_t bytes() const {
    return (mask.size() + tokens.size() + exits.size()) * sizeof(std::uint32_t) + sizeof(*this);
  }
};

class CompiledGrammar : public CompiledConstraint, public std::enable_shared_from_this<CompiledGrammar> {
 public:
  CompiledGrammar(Automaton automaton, std::shared_ptr<const Vocabulary> vocabulary);

  std::unique_ptr<Constraint> start() const override;

  // Looks tokens up for states in advance, for that long at most.
  void prepare(std::chrono::milliseconds budget);

  const Automaton& automaton() const { return automaton_; }
  const Vocabulary& vocabulary() const { return *vocabulary_; }
  // `work` is reduced by what the looking up took, if it was not known.
  std::shared_ptr<const StateTokens> tokens_of(std::int32_t state, std::int64_t& work) const;
  // Of what is kept for states.
  std::size_t cached_bytes() const;

 private:
  StateTokens look_up(std::int32_t state, std::int64_t& work) const;

  Automaton automaton_;
  std::shared_ptr<const Vocabulary> vocabulary_;
  mutable std::mutex mutex_;
  mutable std::vector<std::shared_ptr<const StateTokens>> states_;
  mutable std::size_t cached_bytes_ = 0;
};

}  // namespace mimo::grammar
