// POST /v1/messages and /v1/messages/count_tokens: the Anthropic form of a conversation.
#include <algorithm>
#include <utility>

#include "api/constraint_fields.h"
#include "api/conversation.h"
#include "api/parse_requests.h"
#include "api/request_fields.h"
#include "text/tool_schema.h"

namespace mimo {
namespace {

// A coding client writes this line, with a hash that changes on every request, at the very start of its
// system prompt. Left there, no two requests would share a prefix.
constexpr std::string_view kBillingHeader = "x-anthropic-billing-header";

std::string_view without_billing_header(std::string_view text) {
  if (!text.starts_with(kBillingHeader)) return text;
  const std::size_t end = text.find('\n');
  return end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
}

json::object text_part(std::string_view text) {
  return {{"type", "text"}, {"text", json::string_view(text)}};
}

// Reads blocks of one list and hands them out by type.
class BlockReader {
 public:
  BlockReader(const json::value& block, std::string path, RequestProblem& problem)
      : path_(std::move(path)), problem_(&problem) {
    const json::object* object = block.if_object();
    if (object == nullptr) {
      problem.add(path_, fmt::format("got {}, expected an object with a type", shown_value(block)));
      return;
    }
    reader_.emplace(*object, path_, problem);
    type_ = reader_->text("type").value_or("");
    if (type_.empty() && !problem.found()) reader_->refuse("type", "a string");
  }

  // "" when a problem has been found.
  const std::string& type() const { return type_; }
  ObjectReader& fields() { return *reader_; }

  std::string required_text(const char* key) {
    std::optional<std::string> text = reader_->text(key);
    if (!text && !problem_->found()) reader_->refuse(key, "a string");
    return std::move(text).value_or("");
  }

  void refuse_type(std::string_view expected) {
    if (type_.empty()) return;
    const bool media = type_ == "image" || type_ == "document";
    reader_->problem("type",
                     fmt::format("got {}, {}expected {}", shown_value(json::value(json::string_view(type_))),
                                 media ? "but media are not supported yet, " : "", expected));
  }

 private:
  std::string path_;
  RequestProblem* problem_;
  std::optional<ObjectReader> reader_;
  std::string type_;
};

class MessagesReader {
 public:
  MessagesReader(ObjectReader& body, const ApiContext& context, ApiRequest& request)
      : body_(&body), context_(&context), request_(&request) {}

  void system();
  void messages();
  void tools();
  void tool_choice();

 private:
  const json::array* blocks(const json::value& value, const std::string& path);
  // The text of a block that is nothing but text: text, or a document that holds text.
  void append_text(BlockReader& block, std::string_view expected, json::array& parts);
  void document(BlockReader& block, json::array& parts);
  void tool_result(BlockReader& block);
  void user(const json::value& content, const std::string& path, std::string_view role);
  void assistant(const json::value& content, const std::string& path);
  void tool(const json::value& value, const std::string& path);
  void push(std::string_view role, json::array parts) {
    request_->chat.messages.push_back(
        json::object{{"role", json::string_view(role)}, {"content", std::move(parts)}});
  }
  RequestProblem& problem() { return body_->problems(); }

  ObjectReader* body_;
  const ApiContext* context_;
  ApiRequest* request_;
};

const json::array* MessagesReader::blocks(const json::value& value, const std::string& path) {
  const json::array* list = value.if_array();
  if (list == nullptr) {
    problem().add(path, fmt::format("got {}, expected a string or a list of blocks", shown_value(value)));
  } else if (list->size() > context_->limits.max_parts) {
    problem().add(
        path, fmt::format("got {} blocks, expected at most {}", list->size(), context_->limits.max_parts));
    return nullptr;
  }
  return list;
}

void MessagesReader::append_text(BlockReader& block, std::string_view expected, json::array& parts) {
  if (block.type() == "text") {
    parts.push_back(text_part(block.required_text("text")));
  } else if (block.type() == "document") {
    document(block, parts);
  } else {
    block.refuse_type(expected);
  }
}

void MessagesReader::document(BlockReader& block, json::array& parts) {
  const json::object* source = block.fields().object("source");
  if (source == nullptr) {
    if (!problem().found()) block.fields().refuse("source", "an object");
    return;
  }
  ObjectReader reader(*source, block.fields().at("source"), problem());
  const std::string type = reader.text("type").value_or("");
  if (type == "text") {
    const std::optional<std::string> data = reader.text("data");
    if (!data && !problem().found()) return reader.refuse("data", "a string");
    parts.push_back(text_part(data.value_or("")));
    return;
  }
  if (type != "content") {
    if (!problem().found())
      reader.refuse("type", "\"text\" or \"content\": other documents are not supported yet");
    return;
  }
  const json::value* content = reader.value("content");
  if (content == nullptr) {
    if (!problem().found()) reader.refuse("content", "a string or a list of blocks");
    return;
  }
  if (content->is_string()) {
    parts.push_back(text_part(as_view(content->get_string())));
    return;
  }
  const json::array* list = blocks(*content, reader.at("content"));
  if (list == nullptr) return;
  for (std::size_t i = 0; i < list->size() && !problem().found(); ++i) {
    BlockReader inner((*list)[i], fmt::format("{}[{}]", reader.at("content"), i), problem());
    if (inner.type() == "text") {
      parts.push_back(text_part(inner.required_text("text")));
    } else {
      inner.refuse_type("\"text\"");
    }
  }
}

void MessagesReader::system() {
  const json::value* value = body_->value("system");
  if (value == nullptr) return;
  const bool keep = context_->keep_billing_header;
  json::array parts;
  if (value->is_string()) {
    const std::string_view text = as_view(value->get_string());
    parts.push_back(text_part(keep ? text : without_billing_header(text)));
  } else if (const json::array* list = blocks(*value, "system")) {
    for (std::size_t i = 0; i < list->size() && !problem().found(); ++i) {
      BlockReader block((*list)[i], fmt::format("system[{}]", i), problem());
      append_text(block, "\"text\"", parts);
      if (i > 0 || keep || problem().found() || parts.empty()) continue;
      json::string& first = parts.front().at("text").get_string();
      first = std::string(without_billing_header(as_view(first)));
    }
  }
  const bool empty = std::all_of(parts.begin(), parts.end(), [](const json::value& part) {
    return part.at("text").get_string().empty();
  });
  if (!empty && !problem().found()) push("system", std::move(parts));
}

void MessagesReader::tool_result(BlockReader& block) {
  ObjectReader& fields = block.fields();
  json::object message{{"role", "tool"}};
  const std::optional<std::string> id = fields.text("tool_use_id");
  if (!id) {
    if (!problem().found()) fields.refuse("tool_use_id", "a string");
    return;
  }
  message["tool_call_id"] = *id;
  if (fields.boolean("is_error").value_or(false)) message["is_error"] = true;
  json::array parts;
  if (const json::value* content = fields.value("content")) {
    if (content->is_string()) {
      parts.push_back(text_part(as_view(content->get_string())));
    } else if (const json::array* list = blocks(*content, fields.at("content"))) {
      for (std::size_t i = 0; i < list->size() && !problem().found(); ++i) {
        BlockReader inner((*list)[i], fmt::format("{}[{}]", fields.at("content"), i), problem());
        append_text(inner, "\"text\" or \"document\"", parts);
      }
    }
  }
  message["content"] = std::move(parts);
  request_->chat.messages.push_back(std::move(message));
}

void MessagesReader::user(const json::value& content, const std::string& path, std::string_view role) {
  if (content.is_string()) return push(role, {text_part(as_view(content.get_string()))});
  const json::array* list = blocks(content, path);
  if (list == nullptr) return;
  if (list->empty()) return problem().add(path, "got an empty list, expected at least one block");
  json::array parts;
  for (std::size_t i = 0; i < list->size() && !problem().found(); ++i) {
    BlockReader block((*list)[i], fmt::format("{}[{}]", path, i), problem());
    if (block.type() != "tool_result") {
      append_text(block, "\"text\", \"document\" or \"tool_result\"", parts);
      continue;
    }
    if (!parts.empty()) push(role, std::exchange(parts, {}));
    tool_result(block);
  }
  if (!parts.empty()) push(role, std::move(parts));
}

void MessagesReader::assistant(const json::value& content, const std::string& path) {
  if (content.is_string()) return push("assistant", {text_part(as_view(content.get_string()))});
  const json::array* list = blocks(content, path);
  if (list == nullptr) return;
  json::array parts;
  json::array calls;
  std::optional<std::string> reasoning;
  for (std::size_t i = 0; i < list->size() && !problem().found(); ++i) {
    BlockReader block((*list)[i], fmt::format("{}[{}]", path, i), problem());
    if (block.type() == "text") {
      parts.push_back(text_part(block.required_text("text")));
    } else if (block.type() == "thinking") {
      reasoning = reasoning.value_or("") + block.required_text("thinking");
    } else if (block.type() == "redacted_thinking") {
      continue;
    } else if (block.type() == "tool_use") {
      const std::string name = block.required_text("name");
      if (!problem().found()) check_tool_name(name, block.fields().at("name"), problem());
      const std::string id = block.required_text("id");
      const json::object* input = block.fields().object("input");
      calls.push_back(json::object{
          {"id", id},
          {"type", "function"},
          {"function",
           json::object{{"name", name}, {"arguments", input == nullptr ? json::object() : *input}}}});
    } else {
      block.refuse_type("\"text\", \"thinking\", \"redacted_thinking\" or \"tool_use\"");
    }
  }
  if (calls.size() > context_->limits.max_tool_calls) {
    problem().add(path, fmt::format("got {} tool_use blocks, expected at most {}", calls.size(),
                                    context_->limits.max_tool_calls));
  }
  json::object message{{"role", "assistant"}, {"content", std::move(parts)}};
  if (reasoning) message["reasoning_content"] = *reasoning;
  if (!calls.empty()) message["tool_calls"] = std::move(calls);
  request_->chat.messages.push_back(std::move(message));
}

void MessagesReader::messages() {
  const json::array* list = body_->array("messages");
  if (list == nullptr || list->empty()) {
    if (!body_->failed()) {
      body_->problem("messages", list == nullptr ? "got nothing, expected a list of messages"
                                                 : "got an empty list, expected at least one message");
    }
    return;
  }
  if (list->size() > context_->limits.max_messages) {
    body_->problem("messages", fmt::format("got {} messages, expected at most {}", list->size(),
                                           context_->limits.max_messages));
    return;
  }
  std::string role;
  for (std::size_t i = 0; i < list->size() && !problem().found(); ++i) {
    const std::string path = fmt::format("messages[{}]", i);
    const json::object* object = (*list)[i].if_object();
    if (object == nullptr) {
      problem().add(path, fmt::format("got {}, expected an object", shown_value((*list)[i])));
      return;
    }
    ObjectReader reader(*object, path, problem());
    role = reader.text("role").value_or("");
    if (role != "user" && role != "assistant" && role != "system") {
      if (!problem().found()) reader.refuse("role", "\"user\", \"assistant\" or \"system\"");
      return;
    }
    const json::value* content = reader.value("content");
    if (content == nullptr) {
      if (!problem().found()) reader.refuse("content", "a string or a list of blocks");
      return;
    }
    if (role == "assistant") {
      assistant(*content, reader.at("content"));
    } else {
      user(*content, reader.at("content"), role);
    }
  }
  if (problem().found() || role != "assistant") return;
  if (request_->chat.messages.back().get_object().contains("tool_calls")) {
    problem().add("messages", "the last message has a tool_use block: expected its tool_result after it");
    return;
  }
  request_->chat.continue_final_message = true;
  request_->chat.add_generation_prompt = false;
}

void MessagesReader::tool(const json::value& value, const std::string& path) {
  const json::object* object = value.if_object();
  if (object == nullptr) {
    problem().add(path, fmt::format("got {}, expected an object", shown_value(value)));
    return;
  }
  ObjectReader reader(*object, path, problem());
  const std::string type = reader.text("type").value_or("custom");
  const std::string name = reader.text("name").value_or("");
  const json::object* schema = reader.object("input_schema");
  if (type != "custom" && schema == nullptr && !problem().found()) {
    // Run by that vendor's servers; a client that lists one does not depend on it.
    request_->warnings.push_back(fmt::format("{}: tools of type {} are left out", path,
                                             shown_value(json::value(json::string_view(type)))));
    return;
  }
  json::object function{{"name", name}};
  if (const std::optional<std::string> text = reader.text("description")) function["description"] = *text;
  if (schema == nullptr && !problem().found()) return reader.refuse("input_schema", "an object");
  if (const std::optional<bool> strict = reader.boolean("strict")) function["strict"] = *strict;
  if (problem().found()) return;
  check_tool_name(name, reader.at("name"), problem());
  if (find_tool(request_->chat.tools, name).declared) {
    reader.problem("name", fmt::format("\"{}\" is declared twice", name));
  }
  function["parameters"] = *schema;
  request_->chat.tools.push_back(json::object{{"type", "function"}, {"function", std::move(function)}});
}

void MessagesReader::tools() {
  const json::array* list = body_->array("tools");
  if (list == nullptr) return;
  if (list->size() > context_->limits.max_tools) {
    body_->problem(
        "tools", fmt::format("got {} tools, expected at most {}", list->size(), context_->limits.max_tools));
    return;
  }
  for (std::size_t i = 0; i < list->size() && !problem().found(); ++i) {
    tool((*list)[i], fmt::format("tools[{}]", i));
  }
}

void MessagesReader::tool_choice() {
  const json::object* choice = body_->object("tool_choice");
  if (choice == nullptr) return;
  ObjectReader reader(*choice, "tool_choice", problem());
  const std::string type = reader.text("type").value_or("");
  if (reader.boolean("disable_parallel_tool_use").value_or(false)) request_->parallel_tool_calls = false;
  if (type == "auto") return;
  if (type == "none") {
    request_->tool_choice = ToolChoice::kNone;
  } else if (type == "any") {
    request_->tool_choice = ToolChoice::kRequired;
    if (request_->chat.tools.empty()) reader.problem("type", "got \"any\", but there are no tools");
  } else if (type == "tool") {
    request_->tool_choice = ToolChoice::kNamed;
    request_->tool_name = reader.text("name").value_or("");
    if (!problem().found() && !find_tool(request_->chat.tools, request_->tool_name).declared) {
      reader.refuse("name", "the name of one of the tools");
    }
  } else if (!problem().found()) {
    reader.refuse("type", "\"auto\", \"any\", \"tool\" or \"none\"");
  }
}

// output_config{effort, format}, and output_format, its older form.
void read_output_config(ObjectReader& body, const ApiContext& context, ApiRequest& request) {
  const auto read_format = [&](const json::object& format, const std::string& path) {
    ObjectReader reader(format, path, body.problems());
    const std::string type = reader.text("type").value_or("");
    if (type == "text") return;
    const json::value* schema = reader.value("schema");
    if (type != "json_schema" || schema == nullptr) {
      if (!body.failed())
        body.problems().add(path, "expected {\"type\": \"json_schema\", \"schema\": {...}}");
      return;
    }
    if (request.constraint.content != ContentForm::kFree) {
      body.problems().add(path, "expected only one form of the answer");
      return;
    }
    set_schema(*schema, true, reader.at("schema"), context.limits, body.problems(), request.constraint);
  };
  if (const json::object* format = body.object("output_format")) read_format(*format, "output_format");
  const json::object* config = body.object("output_config");
  if (config == nullptr) return;
  ObjectReader reader(*config, "output_config", body.problems());
  if (const json::object* format = reader.object("format")) read_format(*format, "output_config.format");
  const std::optional<std::string> effort = reader.text("effort");
  if (!effort || request.thinking_budget) return;
  if (*effort == "low") {
    request.thinking_budget = context.effort_budgets.low;
  } else if (*effort == "medium") {
    request.thinking_budget = context.effort_budgets.medium;
  } else if (*effort == "high") {
    request.thinking_budget = context.effort_budgets.high;
  } else if (*effort != "xhigh" && *effort != "max") {
    reader.refuse("effort", "\"low\", \"medium\", \"high\", \"xhigh\" or \"max\"");
  }
}

void read_conversation(ObjectReader& body, const ApiContext& context, ApiRequest& request) {
  MessagesReader reader(body, context, request);
  reader.system();
  reader.messages();
  reader.tools();
  reader.tool_choice();
  read_template_kwargs(body, context, request.chat);
}

}  // namespace

ApiResult<ApiRequest> parse_messages_request(std::string_view text, const ApiContext& context) {
  const ApiResult<json::object> object = parse_body(text, context.limits);
  if (!object) return tl::unexpected(object.error());
  RequestProblem problem;
  ObjectReader body(*object, "", problem);

  ApiRequest request;
  request.route = ApiRoute::kMessages;
  request.params = context.default_params;
  request.model = read_model(body, context.models);
  read_conversation(body, context, request);
  read_thinking_budget(body, context, request);
  read_output_config(body, context, request);
  read_sampling(body, context, request.params);
  request.params.logprobs.reset();
  request.params.max_tokens = body.integer("max_tokens", 1);
  if (!request.params.max_tokens && !body.failed()) {
    body.refuse("max_tokens", "an integer of at least 1: this API requires it");
  }
  read_stop(body, "stop_sequences", request.params);
  request.stream = body.boolean("stream").value_or(false);
  read_request_options(body, request);
  set_call_form(body, request);
  return finish_request(body, context, std::move(request));
}

ApiResult<CountTokensRequest> parse_count_tokens_request(std::string_view text, const ApiContext& context) {
  const ApiResult<json::object> object = parse_body(text, context.limits);
  if (!object) return tl::unexpected(object.error());
  RequestProblem problem;
  ObjectReader body(*object, "", problem);

  ApiRequest request;
  request.model = read_model(body, context.models);
  read_conversation(body, context, request);
  if (problem.found()) return tl::unexpected(problem.error());
  return CountTokensRequest{.model = std::move(request.model),
                            .chat = std::move(request.chat),
                            .warnings = std::move(request.warnings),
                            .unknown_fields = body.unread()};
}

}  // namespace mimo
