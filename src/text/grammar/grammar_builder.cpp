#include "text/grammar/grammar_builder.h"

#include <utility>

namespace mimo::grammar {

std::int32_t GrammarBuilder::add_state(std::uint64_t place) {
  if (error_) return 0;
  if (places_.size() >= limits_.builder_states) {
    fail(ErrorCode::kLimit,
         "the grammar expands to more than {} states; fewer or smaller repetitions and lengths"
         " make it smaller",
         limits_.builder_states);
    return 0;
  }
  places_.push_back(place);
  return static_cast<std::int32_t>(places_.size()) - 1;
}

std::uint64_t GrammarBuilder::next_place() { return mix(context_, counter_++); }

GrammarBuilder::Copy::Copy(GrammarBuilder& builder, std::uint64_t repetition, std::uint64_t number)
    : builder_(builder), context_(builder.context_), counter_(builder.counter_) {
  builder.context_ = mix(repetition, number);
  builder.counter_ = 0;
}

GrammarBuilder::Copy::~Copy() {
  builder_.context_ = context_;
  builder_.counter_ = counter_;
}

std::int32_t GrammarBuilder::add_rule(std::string name) {
  const std::int32_t start = add_state();
  const std::int32_t end = add_state();
  rules_.push_back({.name = std::move(name), .start = start, .end = end});
  return static_cast<std::int32_t>(rules_.size()) - 1;
}

void GrammarBuilder::add(const Edge& edge) {
  if (error_) return;
  // Edges without states of their own (alternatives between the same two states) need a bound as well.
  if (edges_.size() >= 4 * limits_.builder_states) {
    fail(ErrorCode::kLimit, "the grammar expands to more than {} transitions", 4 * limits_.builder_states);
    return;
  }
  edges_.push_back(edge);
}

std::int32_t GrammarBuilder::literal(std::int32_t from, std::string_view text) {
  for (const char c : text) {
    const std::int32_t next = add_state();
    if (error_) return 0;
    bytes(from, next, static_cast<std::uint8_t>(c), static_cast<std::uint8_t>(c));
    from = next;
  }
  return from;
}

std::int32_t GrammarBuilder::called(std::int32_t from, std::int32_t rule) {
  const std::int32_t to = add_state();
  call(from, to, rule);
  return to;
}

std::int32_t GrammarBuilder::optional_literal(std::int32_t from, std::string_view text) {
  const std::int32_t to = literal(from, text);
  empty(from, to);
  return to;
}

bool GrammarBuilder::failed() {
  if (!error_ && deadline_.passed()) error_ = deadline_error();
  return error_.has_value();
}

// The finalizer of splitmix64.
std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  std::uint64_t x = a * 0x9E3779B97F4A7C15U + b + 0x632BE59BD9B4E019U;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31);
}

Error deadline_error() {
  return {ErrorCode::kLimit, "compiling the grammar takes longer than the time limit; it has to be smaller"};
}

}  // namespace mimo::grammar
