// Conversation to token ids: the chat template's rendering, encoded so that only what the template itself
// wrote can become control tokens.
#pragma once

#include <vector>

#include "core/result.h"
#include "text/assistant_answer.h"
#include "text/chat_format.h"
#include "text/tokenizer.h"

namespace mimo {

struct ChatPrompt {
  std::vector<TokenId> ids;
  ThinkBlock think_block = ThinkBlock::kModelDecides;
};

Result<ChatPrompt> make_chat_prompt(const ChatFormat& format, const Tokenizer& tokenizer,
                                    const ChatInput& input);

}  // namespace mimo
