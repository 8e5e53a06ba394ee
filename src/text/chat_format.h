// Conversations to prompt text: brings OpenAI-style messages into one form and renders them with the chat
// template of the checkpoint. The rules of the first step are in docs of each field below; the second step is
// text/jinja.
#pragma once

#include <cstddef>
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "core/result.h"
#include "text/jinja/limits.h"
#include "text/jinja/template.h"

namespace mimo {

// One conversation to render. The JSON must outlive the call.
struct ChatInput {
  // Objects with a string `role`. `content` may be a string, null or absent (rendered as ""), or a list of
  // {"type": "text", "text": ...} parts, which are joined without a separator; other part types are refused
  // by name. A null `tool_calls` counts as absent. `function.arguments` given as text is parsed to a mapping
  // (blank text: no arguments). `reasoning_content` stays as it is; where it is absent or null, a string
  // `reasoning` is used for it.
  const json::array* messages = nullptr;
  const json::array* tools =
      nullptr;  // {"type": "function", "function": {"name": ...}} each; empty counts as none
  bool add_generation_prompt = true;
  std::optional<bool> enable_thinking = {};       // not passed to the template when absent
  const json::object* template_kwargs = nullptr;  // further template variables; they win over the fields
                                                  // above, but may not be called "messages" or "tools"
  std::optional<std::time_t> now = {};  // for templates that print the date; the current time when absent
};

struct ChatRules {
  bool reject_bad_arguments =
      false;  // tool call arguments that are not a JSON object: error naming the message,
              // instead of one argument called "arguments" that holds the text
  bool reject_missing_reasoning = false;  // assistant messages with tool calls but no reasoning: error
};

struct RenderedChat {
  std::string text;
  std::vector<jinja::TrustRun> runs;  // only bytes of trusted runs may become control tokens
  std::size_t bad_arguments = 0;      // tool calls whose arguments were kept as text
  std::size_t missing_reasoning = 0;  // assistant messages with tool calls and without reasoning

  // Whether the text ends in `suffix` and the template itself wrote it: how to learn from a rendered prompt
  // that thinking is switched off, without being misled by message text.
  bool has_trusted_suffix(std::string_view suffix) const;
};

class ChatFormat {
 public:
  // From `chat_template.jinja` in the directory, or else `chat_template` in its tokenizer_config.json: a
  // text, or a list of {name, template}, of which "default" is used and "tool_use", where present, for
  // requests with tools. Token strings of tokenizer_config.json (bos_token, ...) become trusted template
  // variables.
  static Result<ChatFormat> load(const std::string& directory, const jinja::Limits& limits = {});

  // From a template text; `name` stands in front of messages.
  static Result<ChatFormat> from_template(std::string_view source, std::string name,
                                          const jinja::Limits& limits = {});

  // May be called by several threads at once. kInvalidArgument: the messages are malformed or the template
  // refused them (raise_exception gives exactly the template's message); kUnsupported: media parts; kLimit: a
  // render limit.
  Result<RenderedChat> render(const ChatInput& input, const ChatRules& rules = {}) const;

  // Whether the template reads a variable of this name, such as "enable_thinking".
  bool uses(std::string_view variable) const { return default_.uses(variable); }

 private:
  explicit ChatFormat(jinja::Template standard) : default_(std::move(standard)) {}

  jinja::Template default_;
  std::optional<jinja::Template> tool_use_;
  json::object tokens_;  // bos_token and the like
};

}  // namespace mimo
