// A grammar ready to be walked: for each rule a deterministic automaton, in which a call of another rule is one
// more kind of transition. Every state can still reach the end of its rule, so a walk never gets stuck.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "core/result.h"
#include "text/grammar/grammar_builder.h"

namespace mimo::grammar {

class Automaton {
 public:
  // A transition by a call (`id` is the first state of the rule) or by a control token (`id` is the token).
  struct Jump {
    std::int32_t id = 0;
    std::int32_t to = 0;
    // The rule ends behind this call: there is nothing to come back to.
    bool tail = false;
  };

  // kInvalidArgument: no text matches, or a rule calls itself before it takes anything. kLimit: too big.
  static Result<Automaton> build(GrammarBuilder& builder, std::int32_t root);

  // What build() would refuse for other reasons than its size, for a fraction of the time.
  static Status check(GrammarBuilder& builder, std::int32_t root);

  std::int32_t start() const { return start_; }
  std::size_t states() const { return states_.size(); }

  // -1: no text of the grammar goes on with this byte.
  std::int32_t next(std::int32_t state, std::uint8_t byte) const {
    const State& from = states_[static_cast<std::size_t>(state)];
    return table_[from.row + classes_[from.classes][byte]];
  }
  // A state from which the same can be said of every text that is no longer than a token.
  std::int32_t alike(std::int32_t state) const { return states_[static_cast<std::size_t>(state)].alike; }
  // The rule may end here.
  bool final(std::int32_t state) const { return states_[static_cast<std::size_t>(state)].final; }
  bool takes_bytes(std::int32_t state) const { return states_[static_cast<std::size_t>(state)].takes_bytes; }
  // Neither ends nor calls: one thread of a walk stays one.
  bool plain(std::int32_t state) const { return states_[static_cast<std::size_t>(state)].plain; }
  std::span<const Jump> calls(std::int32_t state) const {
    const State& from = states_[static_cast<std::size_t>(state)];
    return std::span(jumps_).subspan(from.jumps, from.calls);
  }
  std::span<const Jump> tokens(std::int32_t state) const {
    const State& from = states_[static_cast<std::size_t>(state)];
    return std::span(jumps_).subspan(from.jumps + from.calls, from.tokens);
  }

 private:
  friend class AutomatonBuilder;

  struct State {
    std::uint32_t row = 0;      // of table_, one cell per class of bytes
    std::uint32_t classes = 0;  // of classes_: which table of byte classes
    std::uint32_t jumps = 0;
    std::uint32_t calls = 0;
    std::uint32_t tokens = 0;
    std::int32_t alike = 0;
    bool final = false;
    bool takes_bytes = false;
    bool plain = false;
  };

  std::int32_t start_ = 0;
  std::vector<State> states_;
  std::vector<std::int32_t> table_;
  std::vector<std::array<std::uint8_t, 256>> classes_;  // one table per rule
  std::vector<Jump> jumps_;
};

// The deterministic automaton of one rule that calls nothing, for products of languages.
struct ByteAutomaton {
  struct State {
    std::array<std::int32_t, 256> next;  // -1: none
    std::int32_t alike = 0;              // as Automaton::alike
    bool final = false;
  };
  std::vector<State> states;  // the first one is the start
};

// What `write` puts between two states of an empty builder.
template <class Write>
Result<ByteAutomaton> byte_automaton(const GrammarLimits& limits, Write write);

// Texts that are in both languages, written between `from` and the state that is returned.
std::int32_t emit_intersection(GrammarBuilder& builder, std::int32_t from, const ByteAutomaton& a,
                               const ByteAutomaton& b);

Result<ByteAutomaton> to_byte_automaton(GrammarBuilder& builder, std::int32_t rule);

template <class Write>
Result<ByteAutomaton> byte_automaton(const GrammarLimits& limits, Write write) {
  GrammarBuilder builder(limits);
  const std::int32_t rule = builder.add_rule("part");
  builder.empty(write(builder, builder.rule(rule).start), builder.rule(rule).end);
  if (builder.error()) return tl::unexpected<Error>(*builder.error());
  return to_byte_automaton(builder, rule);
}

}  // namespace mimo::grammar
