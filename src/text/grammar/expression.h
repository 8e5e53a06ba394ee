// What regular expressions and EBNF have in common: characters, sequences, alternatives, repetition and, in
// EBNF, references to rules.
#pragma once

#include <cstdint>
#include <vector>

#include "text/grammar/code_points.h"
#include "text/grammar/grammar_builder.h"

namespace mimo::grammar {

struct Expression {
  enum class Kind : std::uint8_t { kChars, kSequence, kChoice, kRepeat, kRule };

  Kind kind = Kind::kSequence;  // without children: the empty text
  CodePointSet chars;           // kChars: one of these
  int least = 0;                // kRepeat, of children[0]
  int most = -1;                // -1: no limit
  std::int32_t rule = -1;       // kRule
  std::vector<Expression> children;
};

Expression chars_expression(CodePointSet set);

// least..most (-1: no limit) copies of what `part(from)` writes up to the state that it returns.
template <class Part>
std::int32_t emit_repeat(GrammarBuilder& builder, std::int32_t from, std::int64_t least, std::int64_t most,
                         Part part);

// Between `from` and the state that is returned.
std::int32_t emit_expression(GrammarBuilder& builder, std::int32_t from, const Expression& expression,
                             Spelling spelling);

template <class Part>
std::int32_t emit_repeat(GrammarBuilder& builder, std::int32_t from, std::int64_t least, std::int64_t most,
                         Part part) {
  const std::uint64_t repetition = builder.next_place();
  const std::int64_t lookahead = builder.limits().lookahead;
  const auto copy = [&](std::int64_t number) {
    // Copies take at least a byte each, or else can be skipped.
    const bool least_is_far = number + lookahead + 1 < least;
    const bool most_is_far = number >= least && number + lookahead + 1 < most;
    const std::uint64_t alike = least_is_far ? 0 : most_is_far ? 1 : static_cast<std::uint64_t>(number) + 2;
    const GrammarBuilder::Copy scope(builder, repetition, alike);
    from = part(from);
    // A state of its own, which belongs to this copy alone.
    const std::int32_t behind = builder.add_state();
    builder.empty(from, behind);
    from = behind;
  };
  for (std::int64_t i = 0; i < least && !builder.failed(); ++i) copy(i);
  const std::int32_t to = builder.add_state();
  if (most < 0) {
    // A state of its own: edges back into `from` would loop through whatever stands before.
    const std::int32_t loop = builder.add_state();
    builder.empty(from, loop);
    builder.empty(part(loop), loop);
    builder.empty(loop, to);
    return to;
  }
  for (std::int64_t i = least; i < most && !builder.failed(); ++i) {
    builder.empty(from, to);
    copy(i);
  }
  builder.empty(from, to);
  return to;
}

}  // namespace mimo::grammar
