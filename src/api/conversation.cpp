#include "api/conversation.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "text/tool_schema.h"

namespace mimo {
namespace {

constexpr std::size_t kMaxToolNameBytes = 256;

// One part of a content list as {"type": "text", "text": ...}.
json::object read_part(const json::value& value, const std::string& path, bool assistant,
                       RequestProblem& problem) {
  const json::object* part = value.if_object();
  if (part == nullptr) {
    problem.add(path, fmt::format("got {}, expected an object with a type", shown_value(value)));
    return {};
  }
  ObjectReader reader(*part, path, problem);
  const std::optional<std::string> type = reader.text("type");
  std::optional<std::string> text;
  if (type == "text") {
    text = reader.text("text");
    if (!text && !problem.found()) reader.refuse("text", "a string");
  } else if (type == "refusal" && assistant) {
    text = reader.text("refusal");
    if (!text && !problem.found()) reader.refuse("refusal", "a string");
  } else if (type == "image_url" || type == "video_url" || type == "input_audio" || type == "audio_url" ||
             type == "file") {
    reader.problem("type", fmt::format("got \"{}\", but media are not supported yet, only \"text\"", *type));
  } else if (!problem.found()) {
    reader.refuse("type", "\"text\"");
  }
  return {{"type", "text"}, {"text", text.value_or("")}};
}

void read_content(json::object& message, const std::string& path, const ApiLimits& limits,
                  RequestProblem& problem) {
  const std::string_view role = as_view(message.at("role").get_string());
  const bool assistant = role == "assistant";
  const json::value* content = message.if_contains("content");
  const std::string at = path + ".content";
  if (content == nullptr || content->is_null()) {
    if (!assistant && role != "tool") {
      problem.add(at, fmt::format("got {}, expected a string or a list of parts",
                                  content == nullptr ? "nothing" : "null"));
    }
    message["content"] = "";
    return;
  }
  if (content->is_string()) return;
  const json::array* parts = content->if_array();
  if (parts == nullptr) {
    problem.add(at, fmt::format("got {}, expected a string or a list of parts", shown_value(*content)));
    return;
  }
  if (parts->size() > limits.max_parts) {
    problem.add(at, fmt::format("got {} parts, expected at most {}", parts->size(), limits.max_parts));
    return;
  }
  if (parts->empty() && !assistant && role != "tool") {
    problem.add(at, "got an empty list, expected at least one part");
    return;
  }
  json::array read;
  read.reserve(parts->size());
  for (std::size_t i = 0; i < parts->size() && !problem.found(); ++i) {
    read.push_back(read_part((*parts)[i], fmt::format("{}[{}]", at, i), assistant, problem));
  }
  message["content"] = std::move(read);
}

void check_function(ObjectReader& reader) {
  const std::optional<std::string> name = reader.text("name");
  if (!name) return reader.failed() ? void() : reader.refuse("name", "a string");
  check_tool_name(*name, reader.at("name"), reader.problems());
  const json::value* arguments = reader.value("arguments");
  if (arguments != nullptr && !arguments->is_string() && !arguments->is_object()) {
    reader.refuse("arguments", "a string or an object");
  }
}

void read_tool_calls(json::object& message, const std::string& path, const ApiLimits& limits,
                     RequestProblem& problem) {
  // The older form: one call without an id.
  if (const json::value* call = message.if_contains("function_call"); call != nullptr && !call->is_null()) {
    if (!call->is_object()) {
      problem.add(path + ".function_call", fmt::format("got {}, expected an object", shown_value(*call)));
      return;
    }
    if (message.contains("tool_calls") && !message.at("tool_calls").is_null()) {
      problem.add(path + ".function_call", "expected either tool_calls or function_call");
      return;
    }
    json::value calls = json::array{json::object{{"type", "function"}, {"function", *call}}};
    message["tool_calls"] = std::move(calls);
  }
  message.erase("function_call");

  const json::value* value = message.if_contains("tool_calls");
  if (value == nullptr) return;
  const json::array* calls = value->if_array();
  if (value->is_null() || (calls != nullptr && calls->empty())) {
    message.erase("tool_calls");
    return;
  }
  const std::string at = path + ".tool_calls";
  if (calls == nullptr) {
    problem.add(at, fmt::format("got {}, expected a list", shown_value(*value)));
    return;
  }
  if (message.at("role").get_string() != "assistant") {
    problem.add(at, "only messages of the assistant have calls");
    return;
  }
  if (calls->size() > limits.max_tool_calls) {
    problem.add(at, fmt::format("got {} calls, expected at most {}", calls->size(), limits.max_tool_calls));
    return;
  }
  for (std::size_t i = 0; i < calls->size() && !problem.found(); ++i) {
    const std::string call_at = fmt::format("{}[{}]", at, i);
    const json::object* call = (*calls)[i].if_object();
    if (call == nullptr) {
      problem.add(call_at, fmt::format("got {}, expected an object", shown_value((*calls)[i])));
      return;
    }
    ObjectReader reader(*call, call_at, problem);
    reader.text("id");
    if (reader.text("type").value_or("function") != "function") reader.refuse("type", "\"function\"");
    if (const json::object* function = reader.object("function")) {
      ObjectReader inner(*function, call_at + ".function", problem);
      check_function(inner);
    } else if (!problem.found()) {
      reader.refuse("function", "an object");
    }
  }
}

json::object read_message(const json::value& value, const std::string& path, const ApiLimits& limits,
                          RequestProblem& problem) {
  if (!value.is_object()) {
    problem.add(path, fmt::format("got {}, expected an object", shown_value(value)));
    return {};
  }
  json::object message = value.get_object();
  ObjectReader reader(value.get_object(), path, problem);
  std::string role = reader.text("role").value_or("");
  if (role == "developer") role = "system";
  if (role == "function") role = "tool";
  if (role != "system" && role != "user" && role != "assistant" && role != "tool") {
    if (!problem.found()) {
      reader.refuse("role", "\"system\", \"developer\", \"user\", \"assistant\" or \"tool\"");
    }
    return {};
  }
  message["role"] = role;
  for (const char* key : {"name", "tool_call_id", "reasoning_content", "reasoning"}) reader.text(key);
  read_content(message, path, limits, problem);
  if (!problem.found()) read_tool_calls(message, path, limits, problem);
  if (const json::array* tools = reader.array("tools")) {
    check_tool_list(*tools, path + ".tools", limits, problem);
  }
  return message;
}

void read_flags(ObjectReader& body, Conversation& conversation) {
  const std::optional<bool> go_on = body.boolean("continue_final_message");
  const std::optional<bool> prompt = body.boolean("add_generation_prompt");
  conversation.continue_final_message = go_on.value_or(false);
  conversation.add_generation_prompt = prompt.value_or(!conversation.continue_final_message);
  if (!conversation.continue_final_message) return;
  if (conversation.add_generation_prompt) {
    body.problem(
        "continue_final_message",
        "cannot be true together with add_generation_prompt: one opens a new turn, the other goes on "
        "in the last one");
    return;
  }
  const json::object& last = conversation.messages.back().get_object();
  if (last.at("role").get_string() != "assistant" || last.contains("tool_calls")) {
    body.problem("continue_final_message",
                 "the last message must be one of the assistant, without tool calls");
  }
}

// `functions` as tools.
json::array wrap_functions(const json::array& functions) {
  json::array tools;
  for (const json::value& function : functions) {
    tools.push_back(json::object{{"type", "function"}, {"function", function}});
  }
  return tools;
}

void read_named_choice(ObjectReader& choice, ApiRequest& request) {
  const std::optional<std::string> name = choice.text("name");
  if (!name) {
    if (!choice.failed()) choice.refuse("name", "the name of a tool");
    return;
  }
  request.tool_choice = ToolChoice::kNamed;
  request.tool_name = *name;
  if (!find_tool(request.chat.tools, *name).declared) {
    choice.problem("name", fmt::format("got {}, which is not one of the tools",
                                       shown_value(json::value(json::string_view(*name)))));
  }
}

}  // namespace

void check_tool_name(std::string_view name, const std::string& path, RequestProblem& problem) {
  const bool fits = std::none_of(name.begin(), name.end(), [](char c) {
    return static_cast<unsigned char>(c) <= ' ' || c == '<' || c == '>' || c == 0x7F;
  });
  if (!name.empty() && name.size() <= kMaxToolNameBytes && fits) return;
  problem.add(path, fmt::format("got {}, expected 1 to {} bytes without spaces, '<' and '>'",
                                shown_value(json::value(json::string_view(name))), kMaxToolNameBytes));
}

void check_tool_list(const json::array& tools, const std::string& path, const ApiLimits& limits,
                     RequestProblem& problem) {
  if (tools.size() > limits.max_tools) {
    problem.add(path, fmt::format("got {} tools, expected at most {}", tools.size(), limits.max_tools));
    return;
  }
  std::set<std::string> names;
  for (std::size_t i = 0; i < tools.size() && !problem.found(); ++i) {
    const std::string at = fmt::format("{}[{}]", path, i);
    const json::object* tool = tools[i].if_object();
    if (tool == nullptr) {
      problem.add(at, fmt::format("got {}, expected an object", shown_value(tools[i])));
      return;
    }
    ObjectReader reader(*tool, at, problem);
    if (reader.text("type").value_or("") != "function") {
      if (!problem.found()) reader.refuse("type", "\"function\"");
      return;
    }
    const json::object* function = reader.object("function");
    if (function == nullptr) {
      if (!problem.found()) reader.refuse("function", "an object");
      return;
    }
    ObjectReader inner(*function, at + ".function", problem);
    const std::optional<std::string> name = inner.text("name");
    if (!name && !problem.found()) inner.refuse("name", "a string");
    inner.text("description");
    inner.object("parameters");
    inner.boolean("strict");
    if (problem.found()) return;
    check_tool_name(*name, inner.at("name"), problem);
    if (!names.insert(*name).second) inner.problem("name", fmt::format("\"{}\" is declared twice", *name));
  }
}

void read_messages(ObjectReader& body, const ApiLimits& limits, Conversation& conversation) {
  const json::array* messages = body.array("messages");
  if (messages == nullptr || messages->empty()) {
    if (!body.failed()) {
      body.problem("messages", messages == nullptr ? "got nothing, expected a list of messages"
                                                   : "got an empty list, expected at least one message");
    }
    return;
  }
  if (messages->size() > limits.max_messages) {
    body.problem("messages",
                 fmt::format("got {} messages, expected at most {}", messages->size(), limits.max_messages));
    return;
  }
  conversation.messages.reserve(messages->size());
  for (std::size_t i = 0; i < messages->size(); ++i) {
    json::object message =
        read_message((*messages)[i], fmt::format("messages[{}]", i), limits, body.problems());
    if (body.failed()) return;
    conversation.messages.push_back(std::move(message));
  }
  read_flags(body, conversation);
}

void read_tools(ObjectReader& body, const ApiLimits& limits, ApiRequest& request) {
  const json::array* tools = body.array("tools");
  const json::array* functions = body.array("functions");
  if (tools != nullptr && functions != nullptr) {
    body.problem("functions", "expected either tools or functions");
    return;
  }
  if (tools != nullptr) {
    request.chat.tools = *tools;
  } else if (functions != nullptr) {
    request.chat.tools = wrap_functions(*functions);
    request.legacy_functions = true;
    request.parallel_tool_calls = false;
  }
  check_tool_list(request.chat.tools, functions != nullptr ? "functions" : "tools", limits, body.problems());
}

void read_tool_choice(ObjectReader& body, ApiRequest& request) {
  if (const std::optional<bool> parallel = body.boolean("parallel_tool_calls")) {
    request.parallel_tool_calls = *parallel && !request.legacy_functions;
  }
  const json::value* old_choice = body.value("function_call");
  const json::value* new_choice = body.value("tool_choice");
  if (old_choice != nullptr && new_choice != nullptr) {
    body.problem("function_call", "expected either tool_choice or function_call");
  }
  const char* key = new_choice != nullptr ? "tool_choice" : "function_call";
  const json::value* choice = new_choice != nullptr ? new_choice : old_choice;
  if (choice == nullptr || body.failed()) return;

  const char* expected =
      "\"none\", \"auto\", \"required\" or {\"type\": \"function\", \"function\": {\"name\": ...}}";
  if (const json::string* word = choice->if_string()) {
    if (*word == "auto") return;
    if (*word == "none") {
      request.tool_choice = ToolChoice::kNone;
      return;
    }
    if (*word != "required" || new_choice == nullptr) return body.refuse(key, expected);
    request.tool_choice = ToolChoice::kRequired;
    if (request.chat.tools.empty()) body.problem(key, "got \"required\", but there are no tools");
    return;
  }
  const json::object* object = choice->if_object();
  if (object == nullptr) return body.refuse(key, expected);
  ObjectReader reader(*object, key, body.problems());
  if (new_choice == nullptr) return read_named_choice(reader, request);
  const std::string type = reader.text("type").value_or("");
  const json::object* function = reader.object("function");
  if (type != "function" || function == nullptr) {
    if (!body.failed()) body.problem(key, fmt::format("expected {}", expected));
    return;
  }
  ObjectReader inner(*function, reader.at("function"), body.problems());
  read_named_choice(inner, request);
}

ChatInput chat_input(const Conversation& conversation) {
  ChatInput input;
  input.messages = &conversation.messages;
  input.tools = &conversation.tools;
  input.add_generation_prompt = conversation.add_generation_prompt;
  input.enable_thinking = conversation.enable_thinking;
  input.template_kwargs = &conversation.template_kwargs;
  return input;
}

json::array declared_tools(const Conversation& conversation) {
  json::array tools = conversation.tools;
  for (const json::value& message : conversation.messages) {
    const json::value* own = message.get_object().if_contains("tools");
    if (own == nullptr || !own->is_array()) continue;
    for (const json::value& tool : own->get_array()) tools.push_back(tool);
  }
  return tools;
}

json::array parser_tools(const ApiRequest& request) {
  return request.tool_choice == ToolChoice::kNone ? json::array() : declared_tools(request.chat);
}

}  // namespace mimo
