#include "text/grammar/spec_grammar.h"

#include <string>

#include "text/grammar/ebnf_grammar.h"
#include "text/grammar/json_grammar.h"
#include "text/grammar/regex_syntax.h"
#include "text/grammar/schema_grammar.h"
#include "text/unicode_utf8.h"

namespace mimo::grammar {
namespace {

// The content between two states.
void emit_content(GrammarBuilder& builder, JsonGrammar& json, const ConstraintSpec& spec, std::int32_t from,
                  std::int32_t to) {
  switch (spec.content) {
    case ContentForm::kFree:
      break;
    case ContentForm::kJsonObject:
      builder.call(from, to, json.object());
      break;
    case ContentForm::kJsonSchema: {
      SchemaGrammar grammar(builder, json, spec.schema, "schema");
      builder.empty(grammar.emit(from, spec.schema, ""), to);
      grammar.finish();
      break;
    }
    case ContentForm::kRegex: {
      const Result<Regex> regex = parse_regex(spec.text);
      if (!regex) {
        builder.fail(regex.error().code, "regex {}", regex.error().message);
        return;
      }
      builder.empty(emit_regex(builder, from, *regex, RegexScope::kWhole, Spelling::kText), to);
      break;
    }
    case ContentForm::kChoice:
      for (const std::string& choice : spec.choices) {
        if (builder.failed()) return;
        builder.empty(builder.literal(from, choice), to);
      }
      break;
    case ContentForm::kEbnf:
      builder.call(from, to, emit_ebnf(builder, spec.text));
      break;
  }
}

}  // namespace

Status check_spec_size(const ConstraintSpec& spec) {
  if (const Status schema = check_json_size(spec.schema, "schema"); !schema) return schema;
  for (const json::value& tool : spec.tools) {
    if (const Status size = check_json_size(tool, "tool"); !size) return size;
  }
  const bool regex = spec.content == ContentForm::kRegex;
  const std::size_t most = regex ? kMaxPatternBytes : kMaxGrammarBytes;
  if (spec.text.size() > most) {
    return fail(ErrorCode::kLimit, "{} has {} bytes, the limit is {}", regex ? "regex" : "grammar",
                spec.text.size(), most);
  }
  if (spec.choices.size() > kMaxChoices) {
    return fail(ErrorCode::kLimit, "{} choices, the limit is {}", spec.choices.size(), kMaxChoices);
  }
  if (!utf8_valid(spec.text)) {
    return fail(ErrorCode::kInvalidArgument, "{} is not valid UTF-8", regex ? "regex" : "grammar");
  }
  return {};
}

std::string spec_key(const ConstraintSpec& spec) {
  std::string key = fmt::format("{}|{}|{}|", static_cast<int>(spec.content), static_cast<int>(spec.calls),
                                spec.parallel_calls);
  const auto part = [&](std::string_view text) { key += fmt::format("{}:{}", text.size(), text); };
  part(spec.text);
  for (const std::string& choice : spec.choices) part(choice);
  part(json::serialize(spec.schema));
  part(json::serialize(spec.tools));
  return key;
}

Result<Automaton> compile_spec(const ConstraintSpec& spec, CallTokens tokens, const GrammarLimits& limits) {
  GrammarBuilder builder(limits);
  JsonGrammar json(builder, false);
  const std::int32_t root = builder.add_rule("the answer");
  const Rule rule = builder.rule(root);
  const bool content = spec.content != ContentForm::kFree;
  const bool calls = spec.calls != CallForm::kFree || (content && !spec.tools.empty());
  if (!content && !calls) {
    return fail(ErrorCode::kInvalidArgument, "the request asks for no form of the answer");
  }
  std::int32_t call = -1;
  if (calls) {
    if (tokens.open < 0 || tokens.close < 0) {
      return fail(
          ErrorCode::kUnsupported,
          "this model's tokenizer has no <tool_call> and </tool_call> tokens, so calls cannot be enforced");
    }
    const LooseTools loose = spec.calls == CallForm::kForced ? LooseTools::kBySchema : LooseTools::kFree;
    call = tool_call_rule(builder, spec.tools, tokens, loose);
  }
  if (calls && !content && spec.calls == CallForm::kStrict) {
    // Any text; a call begins with its token.
    const std::int32_t text = builder.add_state();
    builder.empty(rule.start, text);
    builder.bytes(text, text, 0, 255);
    builder.empty(text, rule.end);
    builder.call(text, spec.parallel_calls ? text : rule.end, call);
  } else if (calls) {
    const std::int32_t behind = builder.called(rule.start, call);
    builder.empty(behind, rule.end);
    if (spec.parallel_calls) {
      const std::int32_t next = builder.optional_literal(behind, "\n");
      builder.call(next, behind, call);
    }
  }
  if (content && spec.calls != CallForm::kForced) emit_content(builder, json, spec, rule.start, rule.end);
  return Automaton::build(builder, root);
}

}  // namespace mimo::grammar
