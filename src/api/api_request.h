// One request of any dialect, checked. Everything a client may ask for is here or was refused.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "core/json.h"
#include "engine/sampling_params.h"
#include "text/chat_format.h"
#include "text/constraint_spec.h"

namespace mimo {

enum class ApiRoute : std::uint8_t {
  kChat,        // POST /v1/chat/completions
  kCompletion,  // POST /v1/completions
  kMessages,    // POST /v1/messages
};

enum class ToolChoice : std::uint8_t { kAuto, kNone, kRequired, kNamed };

// A conversation in OpenAI's form, whatever the dialect it came in.
struct Conversation {
  json::array messages;  // not empty; text parts only; roles system, user, assistant, tool
  json::array tools;     // {"type": "function", "function": {"name", ...}} each
  bool add_generation_prompt = true;
  bool continue_final_message = false;  // the answer goes on where the last message, an assistant's, ends
  std::optional<bool> enable_thinking;
  json::object template_kwargs;
};

// For ChatFormat; points into `conversation`.
ChatInput chat_input(const Conversation& conversation);

// Tools of the conversation and of its messages: those whose calls an answer may hold.
json::array declared_tools(const Conversation& conversation);

using TokenIds = std::vector<std::int32_t>;
// Of /v1/completions. Text is not empty, ids are not empty and in [0, vocab).
using CompletionPrompt = std::variant<std::string, TokenIds>;

struct ApiRequest {
  ApiRoute route = ApiRoute::kChat;
  std::string model;       // the served name to answer with
  std::string request_id;  // empty: the client gave none

  Conversation chat;                      // chat and messages
  std::vector<CompletionPrompt> prompts;  // completions; choice i of prompt p has index p * n + i

  ToolChoice tool_choice = ToolChoice::kAuto;
  std::string tool_name;  // kNamed
  bool parallel_tool_calls = true;
  bool legacy_functions = false;  // `functions` instead of `tools`: the answer has function_call

  SamplingParams params;  // has passed validate()
  std::int64_t n = 1;
  ConstraintSpec constraint;

  // none: no limit. From thinking_token_budget, thinking.budget_tokens or the effort.
  std::optional<std::int64_t> thinking_budget;
  bool separate_reasoning = true;  // false: think tags stay in the content
  bool include_reasoning = true;   // false: reasoning is left out of the answer

  bool stream = false;
  bool include_usage = false;     // a last chunk with usage
  bool continuous_usage = false;  // usage in every chunk
  bool echo = false;              // completions: the prompt in front of the text
  bool return_token_ids = false;
  bool return_tokens_as_token_ids = false;  // in logprobs: "token_id:123" for the text
  bool timings = false;

  bool skip_special_tokens = true;
  std::string cache_salt;
  int priority = 0;

  std::vector<std::string> warnings;        // what was left out although it was understood
  std::vector<std::string> unknown_fields;  // of the body: ignored
};

// Empty when answers cannot hold calls: no tools, or tool_choice "none".
json::array parser_tools(const ApiRequest& request);

// POST /tokenize: a text or a conversation.
struct TokenizeRequest {
  std::string model;
  std::optional<std::string> text;
  Conversation chat;  // when there is no text
  bool return_token_strs = false;
};

struct DetokenizeRequest {
  std::string model;
  TokenIds tokens;  // in [0, vocab)
};

// POST /v1/messages/count_tokens
struct CountTokensRequest {
  std::string model;
  Conversation chat;
  std::vector<std::string> warnings;
  std::vector<std::string> unknown_fields;
};

}  // namespace mimo
