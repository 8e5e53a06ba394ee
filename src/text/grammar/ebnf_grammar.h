// EBNF grammars in the form that local inference programs share: `name ::= ...` with "text", [classes], ( ),
// |, *, +, ?, {m}, {m,}, {m,n}, `.` for any character, and # comments. The answer has to match `root`.
#pragma once

#include <cstdint>
#include <string_view>

#include "text/grammar/grammar_builder.h"

namespace mimo::grammar {

// The rule `root`. Errors are left in the builder and name the line.
std::int32_t emit_ebnf(GrammarBuilder& builder, std::string_view text);

}  // namespace mimo::grammar
