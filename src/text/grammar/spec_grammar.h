// The grammar of a whole answer: a content form, calls of tools, or either.
#pragma once

#include "core/result.h"
#include "text/constraint_spec.h"
#include "text/grammar/automaton.h"
#include "text/grammar/tool_grammar.h"

namespace mimo::grammar {

// Sizes that are refused before anything is parsed.
inline constexpr std::size_t kMaxPatternBytes = 16U << 10;
inline constexpr std::size_t kMaxGrammarBytes = 128U << 10;
inline constexpr std::size_t kMaxChoices = 10'000;

Status check_spec_size(const ConstraintSpec& spec);

// A text that tells specs apart. Of a spec that has passed check_spec_size.
std::string spec_key(const ConstraintSpec& spec);

// `tokens` may be -1 where the tokenizer has no such control tokens.
Result<Automaton> compile_spec(const ConstraintSpec& spec, CallTokens tokens, const GrammarLimits& limits);

}  // namespace mimo::grammar
