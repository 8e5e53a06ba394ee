#include "text/grammar/tool_grammar.h"

#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "text/grammar/automaton.h"
#include "text/grammar/schema_facts.h"
#include "text/grammar/schema_grammar.h"
#include "text/grammar/tag_text.h"

namespace mimo::grammar {
namespace {

constexpr std::size_t kMaxName = 256;  // as call_markup.h reads it

// A name that a reader finds again between '=' and '>'.
bool writable_name(std::string_view name) {
  return !name.empty() && name.size() <= kMaxName && name.find_first_of("<>\n") == std::string_view::npos &&
         name.find_first_not_of(" \t\r") == 0 && name.find_last_not_of(" \t\r") == name.size() - 1;
}

class ToolWriter {
 public:
  ToolWriter(GrammarBuilder& builder, CallTokens tokens)
      : builder_(builder), json_(builder, true), tokens_(tokens) {}

  // From behind <tool_call> to the end of the call.
  std::int32_t call(std::int32_t from, const json::object& function, LooseTools loose) {
    const json::value* name = member(function, "name");
    if (name == nullptr || !name->is_string() || !writable_name(text_of(name->get_string()))) {
      builder_.fail(ErrorCode::kInvalidArgument, "a tool has no name that can be written in a call");
      return from;
    }
    name_ = fmt::format("tool {}", text_of(name->get_string()));
    const json::value* strict = member(function, "strict");
    strict_ = strict != nullptr && *strict == json::value(true);
    std::int32_t state = builder_.optional_literal(from, "\n");
    state = builder_.literal(state, fmt::format("<function={}>", text_of(name->get_string())));
    if (!strict_ && loose == LooseTools::kFree) {
      const std::int32_t inside = builder_.add_state();
      builder_.empty(state, inside);
      builder_.bytes(inside, inside, 0, 255);
      return close(inside);
    }
    state = builder_.optional_literal(state, "\n");
    if (const json::value* parameters = member(function, "parameters"); parameters != nullptr) {
      state = write_parameters(state, *parameters);
    }
    state = builder_.literal(state, "</function>");
    return close(builder_.optional_literal(state, "\n"));
  }

 private:
  std::int32_t close(std::int32_t from) {
    const std::int32_t to = builder_.add_state();
    builder_.token(from, to, tokens_.close);
    return to;
  }

  // Says what of the parameters cannot be enforced, as a strict tool demands.
  bool complain(std::string_view what) {
    if (strict_) builder_.fail(ErrorCode::kUnsupported, "{}: parameters: {}", name_, what);
    return strict_;
  }

  std::int32_t write_parameters(std::int32_t from, const json::value& parameters) {
    if (parameters.is_null()) return from;
    static const json::object kNone;
    const json::object* schema = parameters.if_object();
    const json::value* declared = schema == nullptr ? nullptr : member(*schema, "properties");
    const json::object* properties = declared == nullptr ? nullptr : declared->if_object();
    if (schema == nullptr) complain("must be a JSON schema of an object");
    if (properties == nullptr) properties = &kNone;
    if (strict_ && schema != nullptr) {
      static constexpr std::string_view kKnown[] = {
          "type",     "properties",  "required", "additionalProperties",
          "$defs",    "definitions", "title",    "description",
          "$schema",  "$id",         "$comment", "default",
          "examples", "strict"};
      for (const auto& entry : *schema) {
        if (std::find(std::begin(kKnown), std::end(kKnown), std::string_view(entry.key())) ==
            std::end(kKnown)) {
          complain(fmt::format("keyword \"{}\" is not supported", std::string_view(entry.key())));
        }
      }
    }
    std::set<std::string_view> required;
    if (const json::value* names = schema == nullptr ? nullptr : member(*schema, "required");
        names != nullptr && names->is_array()) {
      for (const json::value& name : names->get_array()) {
        if (name.is_string()) required.insert(text_of(name.get_string()));
      }
    }
    for (const std::string_view name : required) {
      if (member(*properties, name) == nullptr) {
        complain(fmt::format("\"required\" names \"{}\", which \"properties\" does not declare", name));
      }
    }
    SchemaGrammar grammar(builder_, json_, parameters, name_);
    for (const auto& entry : *properties) {
      if (builder_.failed()) return from;
      const std::string_view key = entry.key();
      if (!writable_name(key)) {
        if (!complain(fmt::format("\"{}\" is no name that can be written in a call", key)) &&
            required.contains(key)) {
          builder_.fail(ErrorCode::kUnsupported, "{}: \"{}\" is no name that can be written in a call", name_,
                        key);
        }
        continue;
      }
      std::int32_t state = builder_.literal(from, fmt::format("<parameter={}>", key));
      state = builder_.optional_literal(write_value(grammar, state, parameters, entry.value(), key), "\n");
      const std::int32_t behind = builder_.add_state();
      builder_.empty(state, behind);
      if (!required.contains(key)) builder_.empty(from, behind);
      from = behind;
    }
    grammar.finish();
    return from;
  }

  std::int32_t write_value(SchemaGrammar& grammar, std::int32_t from, const json::value& parameters,
                           const json::value& schema, std::string_view key) {
    const std::string path = fmt::format("/properties/{}", key);
    if (!strict_) {
      // Tried on the side: what cannot be enforced, or not within the limits, becomes free text.
      GrammarLimits limits = builder_.limits();
      limits.builder_states = kLooseStates;
      GrammarBuilder trial(limits);
      JsonGrammar trial_json(trial, true);
      SchemaGrammar trial_grammar(trial, trial_json, parameters, name_);
      const std::int32_t rule = trial.add_rule("trial");
      trial.empty(trial_grammar.emit_parameter(trial.rule(rule).start, schema, path), trial.rule(rule).end);
      trial_grammar.finish();
      if (!Automaton::check(trial, rule)) return builder_.called(from, json_.text_to_tag());
    }
    return grammar.emit_parameter(from, schema, path);
  }

  // Of one parameter of a tool that is not strict.
  static constexpr std::size_t kLooseStates = 20'000;

  GrammarBuilder& builder_;
  JsonGrammar json_;
  CallTokens tokens_;
  std::string name_;
  bool strict_ = false;
};

}  // namespace

std::int32_t tool_call_rule(GrammarBuilder& builder, const json::array& tools, CallTokens tokens,
                            LooseTools loose) {
  const std::int32_t rule = builder.add_rule("tool call");
  const Rule added = builder.rule(rule);
  const std::int32_t open = builder.add_state();
  builder.token(added.start, open, tokens.open);
  ToolWriter writer(builder, tokens);
  bool any = false;
  for (const json::value& tool : tools) {
    const json::object* object = tool.if_object();
    const json::value* function = object == nullptr ? nullptr : member(*object, "function");
    if (function == nullptr || !function->is_object()) continue;
    any = true;
    builder.empty(writer.call(open, function->get_object(), loose), added.end);
    if (builder.failed()) break;
  }
  if (!any) builder.fail(ErrorCode::kInvalidArgument, "no tool is declared that could be called");
  return rule;
}

}  // namespace mimo::grammar
