#include "text/chat_format.h"

#include <string>
#include <utility>

#include "core/file.h"
#include "text/chat_messages.h"

namespace mimo {
namespace {

constexpr const char* kTokenKeys[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                      "pad_token", "cls_token", "mask_token"};

// Token strings that tokenizer_config.json names, either as text or as {"content": text}.
json::object named_tokens(const json::object& config) {
  json::object tokens;
  for (const char* key : kTokenKeys) {
    const json::value* token = config.if_contains(key);
    if (token != nullptr && token->is_object()) token = token->get_object().if_contains("content");
    if (token != nullptr && token->is_string()) tokens[key] = *token;
  }
  return tokens;
}

// The templates of a `chat_template` list, by name.
Result<const json::string*> named_template(const json::array& list, std::string_view name,
                                           const std::string& where) {
  for (std::size_t i = 0; i < list.size(); ++i) {
    const json::object* entry = list[i].if_object();
    const json::value* entry_name = entry == nullptr ? nullptr : entry->if_contains("name");
    const json::value* source = entry == nullptr ? nullptr : entry->if_contains("template");
    if (entry_name == nullptr || !entry_name->is_string() || source == nullptr || !source->is_string()) {
      return fail(ErrorCode::kCorrupt,
                  "{}: chat_template[{}]: expected an object with the strings name and template", where, i);
    }
    if (entry_name->get_string() == name) return &source->get_string();
  }
  return nullptr;
}

}  // namespace

bool RenderedChat::has_trusted_suffix(std::string_view suffix) const {
  return text.ends_with(suffix) &&
         (suffix.empty() || (runs.back().trusted && runs.back().bytes >= suffix.size()));
}

Result<ChatFormat> ChatFormat::from_template(std::string_view source, std::string name,
                                             const jinja::Limits& limits) {
  Result<jinja::Template> standard = jinja::Template::parse(source, std::move(name), limits);
  if (!standard) return forward_error(standard);
  return ChatFormat(std::move(*standard));
}

Result<ChatFormat> ChatFormat::load(const std::string& directory, const jinja::Limits& limits) {
  const std::string template_path = directory + "/chat_template.jinja";
  const std::string config_path = directory + "/tokenizer_config.json";

  json::object config;
  if (file_exists(config_path)) {
    Result<json::value> parsed = parse_json_file(config_path);
    if (!parsed) return forward_error(parsed);
    if (!parsed->is_object()) return fail(ErrorCode::kCorrupt, "{}: expected a JSON object", config_path);
    config = std::move(parsed->get_object());
  }

  if (file_exists(template_path)) {
    const Result<std::string> source = read_file(template_path, limits.max_template_bytes);
    if (!source) return forward_error(source);
    Result<ChatFormat> format = from_template(*source, template_path, limits);
    if (format) format->tokens_ = named_tokens(config);
    return format;
  }

  const json::value* entry = config.if_contains("chat_template");
  if (entry == nullptr || entry->is_null()) {
    return fail(
        ErrorCode::kNotFound,
        "{}: no chat template: neither chat_template.jinja nor chat_template in tokenizer_config.json",
        directory);
  }
  const std::string name = config_path + ": chat_template";
  if (entry->is_string()) {
    Result<ChatFormat> format = from_template(entry->get_string(), name, limits);
    if (format) format->tokens_ = named_tokens(config);
    return format;
  }
  if (!entry->is_array()) return fail(ErrorCode::kCorrupt, "{}: expected a string or a list", name);
  const Result<const json::string*> standard = named_template(entry->get_array(), "default", config_path);
  if (!standard) return forward_error(standard);
  if (*standard == nullptr)
    return fail(ErrorCode::kCorrupt, "{}: the list has no entry named \"default\"", name);
  Result<ChatFormat> format = from_template(**standard, name + " \"default\"", limits);
  if (!format) return format;
  const Result<const json::string*> tool_use = named_template(entry->get_array(), "tool_use", config_path);
  if (!tool_use) return forward_error(tool_use);
  if (*tool_use != nullptr) {
    Result<jinja::Template> parsed = jinja::Template::parse(**tool_use, name + " \"tool_use\"", limits);
    if (!parsed) return forward_error(parsed);
    format->tool_use_ = std::move(*parsed);
  }
  format->tokens_ = named_tokens(config);
  return format;
}

Result<RenderedChat> ChatFormat::render(const ChatInput& input, const ChatRules& rules) const {
  static const json::array kNone;
  Result<NormalMessages> normal =
      normalise_messages(input.messages == nullptr ? kNone : *input.messages, rules);
  if (!normal) return forward_error(normal);
  const bool with_tools = input.tools != nullptr && !input.tools->empty();
  if (with_tools) {
    const Status checked = check_tools(*input.tools);
    if (!checked) return forward_error(checked);
  }

  json::object variables;
  variables["messages"] = std::move(normal->messages);
  variables["tools"] = with_tools ? json::value(*input.tools) : json::value(nullptr);
  variables["documents"] = nullptr;  // the reference defines it, so `documents is defined` must hold
  variables["add_generation_prompt"] = input.add_generation_prompt;
  if (input.enable_thinking) variables["enable_thinking"] = *input.enable_thinking;
  if (input.template_kwargs != nullptr) {
    for (const auto& [key, value] : *input.template_kwargs) {
      if (key == "messages" || key == "tools") {
        return fail(ErrorCode::kInvalidArgument,
                    "chat_template_kwargs.{}: this name is set by the request itself",
                    std::string_view(key.data(), key.size()));
      }
      variables[key] = value;
    }
  }

  const jinja::Template& chosen = with_tools && tool_use_ ? *tool_use_ : default_;
  const jinja::RenderInput render_input{.variables = &variables, .trusted = &tokens_, .now = input.now};
  Result<jinja::Rendered> rendered = chosen.render(render_input);
  if (rendered) {
    return RenderedChat{std::move(rendered->text), std::move(rendered->runs), normal->bad_arguments,
                        normal->missing_reasoning};
  }
  if (!with_tools || rendered.error().code == ErrorCode::kLimit) return forward_error(rendered);

  // Name the tool that the template cannot digest, if it is one: the conversation renders without tools but
  // not with this one alone.
  variables["tools"] = nullptr;
  if (!chosen.render(render_input)) return forward_error(rendered);
  for (std::size_t i = 0; i < input.tools->size(); ++i) {
    const json::value& tool = (*input.tools)[i];
    variables["tools"] = json::array({tool});
    const Result<jinja::Rendered> alone = chosen.render(render_input);
    if (alone) continue;
    const json::string& name = tool.at("function").at("name").as_string();
    return tl::unexpected<Error>(
        alone.error().within(fmt::format("tools[{}] ({})", i, std::string_view(name.data(), name.size()))));
  }
  return forward_error(rendered);
}

}  // namespace mimo
