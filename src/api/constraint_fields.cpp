#include "api/constraint_fields.h"

#include <string>
#include <utility>

namespace mimo {
namespace {

class FormReader {
 public:
  FormReader(ObjectReader& body, const ApiLimits& limits, ConstraintSpec& spec)
      : body_(&body), limits_(&limits), spec_(&spec) {}

  void response_format();
  void structured_outputs();

  void schema(ObjectReader& reader, const char* key) {
    if (const json::value* value = reader.value(key)) {
      if (!claim(reader.at(key))) return;
      set_schema(*value, false, reader.at(key), *limits_, reader.problems(), *spec_);
    }
  }

  void text(ObjectReader& reader, const char* key, ContentForm form) {
    const std::optional<std::string> value = reader.text(key);
    if (!value || !claim(reader.at(key))) return;
    if (value->empty() || value->size() > limits_->max_schema_bytes) {
      reader.problem(key,
                     fmt::format("got {} bytes, expected 1 to {}", value->size(), limits_->max_schema_bytes));
      return;
    }
    spec_->content = form;
    spec_->text = *value;
  }

  void choice(ObjectReader& reader, const char* key) {
    const json::array* list = reader.array(key);
    if (list == nullptr || !claim(reader.at(key))) return;
    if (list->empty()) return reader.refuse(key, "a list of at least one string");
    std::size_t bytes = 0;
    for (std::size_t i = 0; i < list->size(); ++i) {
      const json::string* item = (*list)[i].if_string();
      if (item == nullptr || item->empty()) {
        reader.problems().add(
            fmt::format("{}[{}]", reader.at(key), i),
            fmt::format("got {}, expected a string that is not empty", shown_value((*list)[i])));
        return;
      }
      bytes += item->size();
      spec_->choices.emplace_back(as_view(*item));
    }
    if (bytes > limits_->max_schema_bytes) {
      reader.problem(key, fmt::format("got {} bytes, expected at most {}", bytes, limits_->max_schema_bytes));
    }
    spec_->content = ContentForm::kChoice;
  }

  void json_object(ObjectReader& reader, const char* key) {
    if (!reader.boolean(key).value_or(false) || !claim(reader.at(key))) return;
    spec_->content = ContentForm::kJsonObject;
  }

 private:
  // One field only may describe the form.
  bool claim(const std::string& field) {
    if (!first_.empty()) {
      body_->problems().add(
          field, fmt::format("expected only one form of the answer, but there is also {}", first_));
      return false;
    }
    first_ = field;
    return true;
  }

  ObjectReader* body_;
  const ApiLimits* limits_;
  ConstraintSpec* spec_;
  std::string first_;
};

void FormReader::response_format() {
  const json::object* format = body_->object("response_format");
  if (format == nullptr) return;
  ObjectReader reader(*format, "response_format", body_->problems());
  const std::string type = reader.text("type").value_or("");
  if (type == "text") return;
  if (type == "json_object") {
    if (reader.has("schema")) {
      schema(reader, "schema");
    } else if (claim("response_format")) {
      spec_->content = ContentForm::kJsonObject;
    }
    return;
  }
  if (type == "json_schema") {
    const json::object* inner = reader.object("json_schema");
    if (inner == nullptr) {
      if (!reader.failed()) reader.refuse("json_schema", "an object with a schema");
      return;
    }
    ObjectReader body(*inner, reader.at("json_schema"), body_->problems());
    body.text("name");
    const bool strict = body.boolean("strict").value_or(false);
    if (!body.has("schema")) {
      if (!body.failed()) body.refuse("schema", "a JSON schema");
      return;
    }
    schema(body, "schema");
    spec_->strict = strict;
    return;
  }
  if (!reader.failed()) reader.refuse("type", "\"text\", \"json_object\" or \"json_schema\"");
}

void FormReader::structured_outputs() {
  const json::object* object = body_->object("structured_outputs");
  if (object == nullptr) return;
  ObjectReader reader(*object, "structured_outputs", body_->problems());
  schema(reader, "json");
  text(reader, "regex", ContentForm::kRegex);
  choice(reader, "choice");
  text(reader, "grammar", ContentForm::kEbnf);
  json_object(reader, "json_object");
  for (const char* key : {"structural_tag", "whitespace_pattern"}) {
    if (reader.has(key)) reader.problem(key, "this is not supported");
  }
  for (const char* key : {"disable_fallback", "disable_any_whitespace", "disable_additional_properties"}) {
    if (reader.boolean(key).value_or(false)) reader.problem(key, "this is not supported");
  }
  const std::vector<std::string> unknown = reader.unread();
  if (!unknown.empty()) {
    body_->problems().add(reader.at(unknown.front()), "expected json, regex, choice, grammar or json_object");
  }
}

bool is_strict(const json::value& tool) {
  const json::value* strict = tool.at("function").get_object().if_contains("strict");
  return strict != nullptr && strict->is_bool() && strict->get_bool();
}

}  // namespace

void set_schema(const json::value& schema, bool strict, const std::string& path, const ApiLimits& limits,
                RequestProblem& problem, ConstraintSpec& spec) {
  spec.content = ContentForm::kJsonSchema;
  spec.strict = strict;
  if (schema.is_string()) {
    Result<json::value> parsed =
        parse_json(as_view(schema.get_string()), path, {.max_depth = limits.max_depth});
    if (!parsed) {
      ApiError error = api_error(parsed.error());
      error.param = path;
      problem.add(std::move(error));
      return;
    }
    spec.schema = std::move(*parsed);
  } else {
    spec.schema = schema;
  }
  if (!spec.schema.is_object() && !spec.schema.is_bool()) {
    problem.add(path, fmt::format("got {}, expected a JSON schema: an object", shown_value(spec.schema)));
    return;
  }
  const std::size_t bytes = json::serialize(spec.schema).size();
  if (bytes > limits.max_schema_bytes) {
    problem.add(path, fmt::format("got {} bytes, expected at most {}", bytes, limits.max_schema_bytes));
  }
}

void read_content_form(ObjectReader& body, const ApiLimits& limits, ConstraintSpec& spec) {
  FormReader reader(body, limits, spec);
  reader.response_format();
  reader.structured_outputs();
  reader.schema(body, "guided_json");
  reader.text(body, "guided_regex", ContentForm::kRegex);
  reader.choice(body, "guided_choice");
  reader.text(body, "guided_grammar", ContentForm::kEbnf);
  reader.schema(body, "json_schema");
  reader.text(body, "regex", ContentForm::kRegex);
  reader.text(body, "ebnf", ContentForm::kEbnf);
}

void set_call_form(ObjectReader& body, ApiRequest& request) {
  if (body.failed()) return;
  ConstraintSpec& spec = request.constraint;
  spec.parallel_calls = request.parallel_tool_calls;
  const json::array tools = parser_tools(request);
  if (request.tool_choice == ToolChoice::kRequired || request.tool_choice == ToolChoice::kNamed) {
    if (spec.content != ContentForm::kFree) {
      body.problem("tool_choice",
                   "asks for a tool call, and response_format (or a field like it) for content: one of them");
      return;
    }
    spec.calls = CallForm::kForced;
    for (const json::value& tool : tools) {
      const json::string& name = tool.at("function").at("name").get_string();
      if (request.tool_choice == ToolChoice::kRequired || name == json::string_view(request.tool_name)) {
        spec.tools.push_back(tool);
      }
    }
    return;
  }
  for (const json::value& tool : tools) {
    if (is_strict(tool)) spec.calls = CallForm::kStrict;
  }
  if (!spec.empty()) spec.tools = tools;
}

}  // namespace mimo
