// The first step of rendering a conversation: OpenAI-style messages in all their variants to the one form
// that chat templates expect. See ChatInput for the rules.
#pragma once

#include <cstddef>

#include "core/json.h"
#include "core/result.h"
#include "text/chat_format.h"

namespace mimo {

struct NormalMessages {
  json::array messages;
  std::size_t bad_arguments = 0;
  std::size_t missing_reasoning = 0;
};

// Errors name the message and field: `messages[2].content[0]: ...`.
Result<NormalMessages> normalise_messages(const json::array& messages, const ChatRules& rules);

// Checks that every tool is a function with a name; errors name the tool's index.
Status check_tools(const json::array& tools);

}  // namespace mimo
