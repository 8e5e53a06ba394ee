// Tool calls in the family's XML form (tool_call_parser.h), as the model is made to write them: parameters in the
// order in which the tool declares them, at most one line break between tags.
#pragma once

#include <cstdint>

#include "core/json.h"
#include "text/grammar/grammar_builder.h"

namespace mimo::grammar {

struct CallTokens {
  std::int32_t open = -1;   // <tool_call>
  std::int32_t close = -1;  // </tool_call>
};

// How calls of tools that do not say "strict": true are written.
enum class LooseTools : std::uint8_t {
  kBySchema,  // after their schemas, where these can be enforced; a parameter with another one is free text
  kFree,      // the name, and then whatever the model writes
};

// One call of one of `tools` ({"type": "function", "function": {...}} each), as a rule.
std::int32_t tool_call_rule(GrammarBuilder& builder, const json::array& tools, CallTokens tokens,
                            LooseTools loose);

}  // namespace mimo::grammar
