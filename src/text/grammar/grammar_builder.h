// A grammar while it is put together: rules whose bodies are nondeterministic automata over bytes, control
// tokens and calls of rules. Every front end (JSON schema, regular expression, EBNF, tool calls) writes into
// one of these; automaton.h makes of it what a walk runs on.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.h"

namespace mimo::grammar {

// What a request may make of this process. Each is far above what an honest schema needs, and together they
// bound memory to some 200 MB and the time to seconds.
struct GrammarLimits {
  std::size_t builder_states = 200'000;
  std::size_t automaton_states = 120'000;
  std::size_t table_cells = 12'000'000;  // of the transition tables
  // Bytes of the longest token: as far as a mask looks ahead.
  int lookahead = 64;
  std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max();
};

// Asked for in every loop that input can make long.
class Deadline {
 public:
  explicit Deadline(std::chrono::steady_clock::time_point at) : at_(at) {}

  // Reads the clock once in 16 calls.
  bool passed() {
    if (!passed_ && (++calls_ & 15) == 0) passed_ = std::chrono::steady_clock::now() >= at_;
    return passed_;
  }

 private:
  std::chrono::steady_clock::time_point at_;
  std::uint32_t calls_ = 0;
  bool passed_ = false;
};

enum class EdgeKind : std::uint8_t { kEmpty, kBytes, kCall, kToken };

struct Edge {
  std::int32_t from = 0;
  std::int32_t to = 0;
  EdgeKind kind = EdgeKind::kEmpty;
  std::uint8_t low = 0;  // kBytes: low..high
  std::uint8_t high = 0;
  std::int32_t id = 0;  // kCall: the rule; kToken: the token
};

struct Rule {
  std::string name;  // for messages
  std::int32_t start = 0;
  std::int32_t end = 0;
};

// The first failure sticks: from then on nothing is added, so callers need to look only in loops and at the end.
class GrammarBuilder {
 public:
  explicit GrammarBuilder(const GrammarLimits& limits) : limits_(limits), deadline_(limits.deadline) {}

  std::int32_t add_state() { return add_state(next_place()); }
  std::int32_t add_state(std::uint64_t place);
  std::int32_t add_rule(std::string name);
  const Rule& rule(std::int32_t id) const { return rules_[static_cast<std::size_t>(id)]; }

  void empty(std::int32_t from, std::int32_t to) { add({from, to, EdgeKind::kEmpty, 0, 0, 0}); }
  void bytes(std::int32_t from, std::int32_t to, std::uint8_t low, std::uint8_t high) {
    add({from, to, EdgeKind::kBytes, low, high, 0});
  }
  void call(std::int32_t from, std::int32_t to, std::int32_t rule) {
    add({from, to, EdgeKind::kCall, 0, 0, rule});
  }
  void token(std::int32_t from, std::int32_t to, std::int32_t token) {
    add({from, to, EdgeKind::kToken, 0, 0, token});
  }

  // Copies of one part that follow each other are alike as far as a mask looks, unless a limit on their number
  // is near. States of such copies have equal places, and what is looked up for one of them serves for all. A
  // copy is everything added while this is in scope; `number` is distinct for copies that are not alike.
  class Copy {
   public:
    Copy(GrammarBuilder& builder, std::uint64_t repetition, std::uint64_t number);
    ~Copy();
    Copy(const Copy&) = delete;
    Copy& operator=(const Copy&) = delete;

   private:
    GrammarBuilder& builder_;
    std::uint64_t context_;
    std::uint64_t counter_;
  };
  // A new place, distinct from all others outside of copies.
  std::uint64_t next_place();
  const std::vector<std::uint64_t>& places() const { return places_; }

  // The state behind `text`.
  std::int32_t literal(std::int32_t from, std::string_view text);
  // The state behind a call.
  std::int32_t called(std::int32_t from, std::int32_t rule);
  // `text`, or nothing, between two states.
  std::int32_t optional_literal(std::int32_t from, std::string_view text);

  template <class... Args>
  void fail(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
    if (!error_) error_ = Error{code, fmt::format(format, std::forward<Args>(args)...)};
  }
  // True after a failure, of which running out of time is one.
  bool failed();
  const std::optional<Error>& error() const { return error_; }

  const GrammarLimits& limits() const { return limits_; }
  std::size_t states() const { return places_.size(); }
  const std::vector<Edge>& edges() const { return edges_; }
  const std::vector<Rule>& rules() const { return rules_; }

 private:
  void add(const Edge& edge);

  GrammarLimits limits_;
  Deadline deadline_;
  std::vector<std::uint64_t> places_;  // of each state
  std::uint64_t context_ = 0;
  std::uint64_t counter_ = 0;
  std::vector<Edge> edges_;
  std::vector<Rule> rules_;
  std::optional<Error> error_;
};

// Mixes numbers into one that is distinct for distinct input.
std::uint64_t mix(std::uint64_t a, std::uint64_t b);

// The error of a compilation that ran past its deadline.
Error deadline_error();

}  // namespace mimo::grammar
