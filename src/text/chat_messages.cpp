#include "text/chat_messages.h"

#include <string>
#include <string_view>
#include <utility>

namespace mimo {
namespace {

std::string_view view(const json::string& text) { return {text.data(), text.size()}; }

const char* kind_name(const json::value& value) {
  switch (value.kind()) {
    case json::kind::null:
      return "null";
    case json::kind::bool_:
      return "a boolean";
    case json::kind::string:
      return "a string";
    case json::kind::array:
      return "a list";
    case json::kind::object:
      return "an object";
    default:
      return "a number";
  }
}

// Text of a content list.
Result<json::string> join_parts(const json::array& parts, const std::string& where) {
  json::string text;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::string part_at = fmt::format("{}[{}]", where, i);
    const json::object* part = parts[i].if_object();
    if (part == nullptr) {
      return fail(ErrorCode::kInvalidArgument, "{}: expected an object, got {}", part_at,
                  kind_name(parts[i]));
    }
    const json::value* type = part->if_contains("type");
    if (type == nullptr || !type->is_string()) {
      return fail(ErrorCode::kInvalidArgument, "{}.type: expected a string", part_at);
    }
    if (type->get_string() != "text") {
      return fail(ErrorCode::kUnsupported, "{}: parts of type \"{}\" are not supported, only \"text\"",
                  part_at, view(type->get_string()));
    }
    const json::value* content = part->if_contains("text");
    if (content == nullptr || !content->is_string()) {
      return fail(ErrorCode::kInvalidArgument, "{}.text: expected a string", part_at);
    }
    text.append(content->get_string());
  }
  return text;
}

// Puts a mapping in place of arguments that came as text; false when the text is not a JSON object.
Result<bool> parse_arguments(json::object& function, const std::string& where) {
  json::value& arguments = function["arguments"];
  if (arguments.is_object()) return true;
  if (arguments.is_null()) {
    arguments = json::object();
    return true;
  }
  if (!arguments.is_string()) {
    return fail(ErrorCode::kInvalidArgument, "{}: expected a string or an object, got {}", where,
                kind_name(arguments));
  }
  const json::string& text = arguments.get_string();
  if (view(text).find_first_not_of(" \t\r\n") == std::string_view::npos) {
    arguments = json::object();
    return true;
  }
  Result<json::value> parsed = parse_json(view(text), where);
  if (parsed && parsed->is_object()) {
    arguments = std::move(*parsed);
    return true;
  }
  json::object raw;
  raw["arguments"] = text;
  arguments = std::move(raw);
  return false;
}

Status normalise_calls(json::value& calls, const std::string& where, const ChatRules& rules,
                       std::size_t& bad_arguments) {
  if (!calls.is_array()) {
    return fail(ErrorCode::kInvalidArgument, "{}: expected a list, got {}", where, kind_name(calls));
  }
  for (std::size_t i = 0; i < calls.get_array().size(); ++i) {
    const std::string call_at = fmt::format("{}[{}]", where, i);
    json::object* call = calls.get_array()[i].if_object();
    json::value* function = call == nullptr ? nullptr : call->if_contains("function");
    if (function == nullptr || !function->is_object()) {
      return fail(ErrorCode::kInvalidArgument, "{}.function: expected an object", call_at);
    }
    json::object& body = function->get_object();
    const json::value* name = body.if_contains("name");
    if (name == nullptr || !name->is_string()) {
      return fail(ErrorCode::kInvalidArgument, "{}.function.name: expected a string", call_at);
    }
    const Result<bool> parsed = parse_arguments(body, call_at + ".function.arguments");
    if (!parsed) return forward_error(parsed);
    if (*parsed) continue;
    ++bad_arguments;
    if (rules.reject_bad_arguments) {
      return fail(ErrorCode::kInvalidArgument, "{}.function.arguments: expected the text of a JSON object",
                  call_at);
    }
  }
  return {};
}

bool has_text(const json::object& message, std::string_view key) {
  const json::value* value = message.if_contains(key);
  return value != nullptr && value->is_string() && !value->get_string().empty();
}

}  // namespace

Result<NormalMessages> normalise_messages(const json::array& messages, const ChatRules& rules) {
  NormalMessages normal;
  normal.messages.reserve(messages.size());
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const std::string at = fmt::format("messages[{}]", i);
    if (!messages[i].is_object()) {
      return fail(ErrorCode::kInvalidArgument, "{}: expected an object, got {}", at, kind_name(messages[i]));
    }
    json::object message = messages[i].get_object();
    const json::value* role = message.if_contains("role");
    if (role == nullptr || !role->is_string()) {
      return fail(ErrorCode::kInvalidArgument, "{}.role: expected a string", at);
    }
    const bool assistant = role->get_string() == "assistant";

    json::value& content = message["content"];
    if (content.is_null()) {
      content = "";
    } else if (content.is_array()) {
      Result<json::string> text = join_parts(content.get_array(), at + ".content");
      if (!text) return forward_error(text);
      content = std::move(*text);
    } else if (!content.is_string()) {
      return fail(ErrorCode::kInvalidArgument, "{}.content: expected a string or a list, got {}", at,
                  kind_name(content));
    }

    if (assistant && has_text(message, "reasoning")) {
      const json::value* reasoning = message.if_contains("reasoning_content");
      if (reasoning == nullptr || reasoning->is_null()) {
        const json::value other = message.at("reasoning");
        message["reasoning_content"] = other;
      }
    }
    if (json::value* calls = message.if_contains("tool_calls")) {
      if (calls->is_null()) {
        message.erase("tool_calls");
      } else {
        const Status done = normalise_calls(*calls, at + ".tool_calls", rules, normal.bad_arguments);
        if (!done) return forward_error(done);
        if (assistant && !calls->get_array().empty() && !has_text(message, "reasoning_content")) {
          ++normal.missing_reasoning;
          if (rules.reject_missing_reasoning) {
            return fail(ErrorCode::kInvalidArgument,
                        "{}.reasoning_content: missing next to tool calls; send back the reasoning that came "
                        "with them",
                        at);
          }
        }
      }
    }
    normal.messages.push_back(std::move(message));
  }
  return normal;
}

Status check_tools(const json::array& tools) {
  for (std::size_t i = 0; i < tools.size(); ++i) {
    const json::object* tool = tools[i].if_object();
    if (tool == nullptr) {
      return fail(ErrorCode::kInvalidArgument, "tools[{}]: expected an object, got {}", i,
                  kind_name(tools[i]));
    }
    const json::value* function = tool->if_contains("function");
    if (function == nullptr || !function->is_object()) {
      return fail(ErrorCode::kInvalidArgument, "tools[{}].function: expected an object", i);
    }
    const json::value* name = function->get_object().if_contains("name");
    if (name == nullptr || !name->is_string() || name->get_string().empty()) {
      return fail(ErrorCode::kInvalidArgument, "tools[{}].function.name: expected a non-empty string", i);
    }
  }
  return {};
}

}  // namespace mimo
