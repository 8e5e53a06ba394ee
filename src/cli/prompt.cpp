#include "cli/prompt.h"

#include <CLI/CLI.hpp>

#include "core/file.h"
#include "core/json.h"
#include "text/chat_prompt.h"

namespace mimo {
namespace {

constexpr std::size_t kMaxPromptFile = 256u << 20;

// `what` names the conversation in messages.
Result<std::vector<std::int32_t>> render_chat(const ChatInput& input, std::string_view what,
                                              const std::string& directory, const Tokenizer& tokenizer) {
  const Result<ChatFormat> format = ChatFormat::load(directory);
  if (!format) return forward_error(format);
  Result<ChatPrompt> prompt = make_chat_prompt(*format, tokenizer, input);
  if (!prompt) return tl::unexpected(prompt.error().within(std::string(what)));
  return std::move(prompt->ids);
}

Result<std::vector<std::int32_t>> render_message(const PromptOptions& options, const std::string& directory,
                                                 const Tokenizer& tokenizer) {
  const json::array messages{json::object{{"role", "user"}, {"content", *options.message}}};
  ChatInput input;
  input.messages = &messages;
  input.enable_thinking = options.enable_thinking;
  return render_chat(input, "--message", directory, tokenizer);
}

Result<std::vector<std::int32_t>> render_chat_file(const PromptOptions& options, const std::string& directory,
                                                   const Tokenizer& tokenizer) {
  const Result<json::value> file = parse_json_file(options.chat_file, {.max_bytes = kMaxPromptFile});
  if (!file) return forward_error(file);
  const json::object* object = file->if_object();
  const json::value* messages = object != nullptr ? object->if_contains("messages") : &*file;
  if (messages == nullptr || !messages->is_array()) {
    return fail(ErrorCode::kInvalidArgument,
                "{}: expected a list of messages, or an object with \"messages\"", options.chat_file);
  }
  ChatInput input;
  input.messages = &messages->as_array();
  input.enable_thinking = options.enable_thinking;
  if (object != nullptr) {
    for (const auto& [key, value] : *object) {
      const std::string_view name(key.data(), key.size());
      if (name == "messages") continue;
      if (name == "tools" && value.is_array()) {
        input.tools = &value.as_array();
      } else if (name == "chat_template_kwargs" && value.is_object()) {
        input.template_kwargs = &value.as_object();
      } else {
        return fail(ErrorCode::kInvalidArgument,
                    "{}: field \"{}\": expected messages, tools (a list) or chat_template_kwargs (an object)",
                    options.chat_file, name);
      }
    }
  }
  return render_chat(input, options.chat_file, directory, tokenizer);
}

}  // namespace

void add_prompt_options(CLI::App& command, PromptOptions& options) {
  command.add_option("--prompt", options.text, "Text to continue");
  command.add_option("--message", options.message, "One user message, in the checkpoint's chat format");
  command.add_option("--chat", options.chat_file,
                     "JSON file: a list of messages, or an object with messages and tools");
  command.add_option("--token-ids", options.ids_file, "JSON file: an array of token ids");
  command.add_flag("--parse-special", options.parse_special,
                   "With --prompt: control tokens may be spelled in the text");
  // Two callbacks: a flag bound to an optional would be set to false when it is absent.
  command.add_flag_function(
      "--enable-thinking", [&options](std::int64_t /*count*/) { options.enable_thinking = true; },
      "With --message or --chat: switch thinking on (neither: the template's default)");
  command.add_flag_function(
      "--no-enable-thinking", [&options](std::int64_t /*count*/) { options.enable_thinking = false; },
      "With --message or --chat: switch thinking off");
}

Result<std::vector<std::int32_t>> parse_token_ids(std::string_view text, std::string_view what, int vocab) {
  const Result<json::value> value = parse_json(text, what);
  if (!value) return forward_error(value);
  const json::array* array = value->if_array();
  if (array == nullptr) return fail(ErrorCode::kInvalidArgument, "{}: expected an array of token ids", what);
  std::vector<std::int32_t> ids;
  ids.reserve(array->size());
  for (const json::value& item : *array) {
    const std::int64_t* id = item.if_int64();
    if (id == nullptr || *id < 0 || *id >= vocab) {
      return fail(ErrorCode::kInvalidArgument, "{}: element {} is {}, expected an id from 0 to {}", what,
                  ids.size(), json::serialize(item), vocab - 1);
    }
    ids.push_back(static_cast<std::int32_t>(*id));
  }
  return ids;
}

Result<Prompt> make_prompt(const PromptOptions& options, const std::string& directory,
                           const ModelConfig& config) {
  const int sources = (options.text ? 1 : 0) + (options.message ? 1 : 0) +
                      (options.chat_file.empty() ? 0 : 1) + (options.ids_file.empty() ? 0 : 1);
  if (sources != 1) {
    return fail(ErrorCode::kInvalidArgument,
                "{}: give exactly one of --prompt, --message, --chat and --token-ids",
                sources == 0 ? "no prompt" : "several prompts");
  }
  Prompt prompt;
  const std::string tokenizer_file = directory + "/tokenizer.json";
  if (!directory.empty() && file_exists(tokenizer_file)) {
    Result<Tokenizer> tokenizer = Tokenizer::load(tokenizer_file);
    if (!tokenizer) return forward_error(tokenizer);
    prompt.tokenizer.emplace(std::move(*tokenizer));
  }
  if (!options.ids_file.empty()) {
    const Result<std::string> text = read_file(options.ids_file, kMaxPromptFile);
    if (!text) return forward_error(text);
    Result<std::vector<std::int32_t>> ids = parse_token_ids(*text, options.ids_file, config.vocab);
    if (!ids) return forward_error(ids);
    prompt.ids = std::move(*ids);
    return prompt;
  }
  if (!prompt.tokenizer) {
    return fail(ErrorCode::kNotFound,
                "{}: not found; text needs the checkpoint's tokenizer (or give --token-ids)",
                directory.empty() ? std::string("tokenizer.json") : tokenizer_file);
  }
  if (options.text) {
    prompt.ids = prompt.tokenizer->encode(*options.text, {.allow_added_tokens = options.parse_special});
    return prompt;
  }
  Result<std::vector<std::int32_t>> ids = options.message
                                              ? render_message(options, directory, *prompt.tokenizer)
                                              : render_chat_file(options, directory, *prompt.tokenizer);
  if (!ids) return forward_error(ids);
  prompt.ids = std::move(*ids);
  return prompt;
}

}  // namespace mimo
