// The tokens of a problem, as the model of this process sees it.
#pragma once

#include <optional>

#include "core/result.h"
#include "eval/problem.h"
#include "text/chat_prompt.h"

namespace mimo {

// A conversation through the chat template, which must be there (`format` not null), or the plain text.
// `enable_thinking` overrides the problem's own switch. Errors name the problem.
Result<ChatPrompt> make_problem_prompt(const Tokenizer& tokenizer, const ChatFormat* format,
                                       const Problem& problem, std::optional<bool> enable_thinking);

}  // namespace mimo
