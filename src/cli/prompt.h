// The prompt of `mimo generate`: text, a conversation, or token ids.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/config.h"
#include "core/result.h"
#include "text/tokenizer.h"

namespace CLI {
class App;
}

namespace mimo {

struct PromptOptions {
  std::optional<std::string> text;
  std::optional<std::string> message;  // a conversation of one user message
  std::string chat_file;
  std::string ids_file;
  bool parse_special = false;
  std::optional<bool> enable_thinking;
};

void add_prompt_options(CLI::App& command, PromptOptions& options);

struct Prompt {
  std::vector<std::int32_t> ids;
  std::optional<Tokenizer> tokenizer;  // of the checkpoint, when it has one
};

// Exactly one source must be given. Errors name the option, file or field.
Result<Prompt> make_prompt(const PromptOptions& options, const std::string& directory,
                           const ModelConfig& config);

// A JSON array of integers in [0, vocab). `what` names it in messages.
Result<std::vector<std::int32_t>> parse_token_ids(std::string_view text, std::string_view what, int vocab);

}  // namespace mimo
