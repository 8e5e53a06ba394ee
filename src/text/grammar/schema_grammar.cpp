#include "text/grammar/schema_grammar.h"

#include <algorithm>
#include <array>
#include <functional>
#include <utility>

#include "text/grammar/automaton.h"
#include "text/grammar/code_points.h"
#include "text/grammar/number_range.h"
#include "text/grammar/regex_syntax.h"
#include "text/grammar/schema_facts.h"
#include "text/grammar/tag_text.h"
#include "text/python_json.h"
#include "text/unicode_utf8.h"

namespace mimo::grammar {
namespace {

// "$ref"s in a row that are followed in place.
constexpr int kMaxRefs = 16;
// Counted lengths of strings that are written without shared blocks: inside tags, and next to a pattern.
constexpr std::int64_t kMaxPlainLength = 2000;
// Of automata whose product is taken: a state of one is 1 KB.
constexpr std::size_t kMaxProductStates = 30'000;

// They say nothing about the value.
constexpr std::array<std::string_view, 15> kAnnotations = {
    "title",      "description", "default",   "examples",    "example",
    "$schema",    "$id",         "$comment",  "definitions", "$defs",
    "deprecated", "readOnly",    "writeOnly", "strict",      "discriminator"};

constexpr std::array<std::string_view, 24> kKeywords = {"type",
                                                        "enum",
                                                        "const",
                                                        "anyOf",
                                                        "oneOf",
                                                        "allOf",
                                                        "$ref",
                                                        "minLength",
                                                        "maxLength",
                                                        "pattern",
                                                        "format",
                                                        "minimum",
                                                        "maximum",
                                                        "exclusiveMinimum",
                                                        "exclusiveMaximum",
                                                        "multipleOf",
                                                        "properties",
                                                        "required",
                                                        "additionalProperties",
                                                        "items",
                                                        "prefixItems",
                                                        "minItems",
                                                        "maxItems",
                                                        "uniqueItems"};

template <class List>
bool contains(const List& list, std::string_view word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

std::string child(const std::string& path, std::string_view key) {
  std::string out = path + "/";
  for (const char c : key) {
    if (c == '~') {
      out += "~0";
    } else if (c == '/') {
      out += "~1";
    } else {
      out += c;
    }
  }
  return out;
}

std::string child(const std::string& path, std::string_view key, std::size_t index) {
  return fmt::format("{}/{}/{}", path, key, index);
}

std::string quoted(std::string_view text) {
  std::string out;
  append_python_json_string(out, text, false);
  return out;
}

// Characters between quotes, or bare: least..most of them.
std::int32_t emit_length(GrammarBuilder& builder, std::int32_t from, std::int64_t least, std::int64_t most,
                         Spelling spelling) {
  Expression repeat;
  repeat.kind = Expression::Kind::kRepeat;
  repeat.least = static_cast<int>(least);
  repeat.most = static_cast<int>(most);
  repeat.children.push_back(chars_expression(CodePointSet::all()));
  return emit_expression(builder, from, repeat, spelling);
}

}  // namespace

Status check_json_size(const json::value& value, std::string_view what) {
  struct Visit {
    const json::value* value;
    std::size_t depth;
  };
  std::vector<Visit> work{{&value, 1}};
  std::size_t seen = 0;
  while (!work.empty()) {
    const Visit at = work.back();
    work.pop_back();
    if (++seen > kMaxSchemaValues) {
      return fail(ErrorCode::kLimit, "{} has more than {} values", what, kMaxSchemaValues);
    }
    const bool container = at.value->is_object() || at.value->is_array();
    if (container && at.depth > kMaxSchemaDepth) {
      return fail(ErrorCode::kLimit, "{} is nested deeper than {} levels", what, kMaxSchemaDepth);
    }
    if (at.value->is_object()) {
      for (const auto& entry : at.value->get_object()) work.push_back({&entry.value(), at.depth + 1});
    }
    if (at.value->is_array()) {
      for (const json::value& item : at.value->get_array()) work.push_back({&item, at.depth + 1});
    }
  }
  return {};
}

void SchemaGrammar::refuse(ErrorCode code, const std::string& path, std::string_view what) {
  if (path.empty()) {
    builder_.fail(code, "{}: {}", name_, what);
  } else {
    builder_.fail(code, "{} at '{}': {}", name_, path, what);
  }
}

void SchemaGrammar::check_keywords(const json::object& schema, const std::string& path) {
  for (const auto& entry : schema) {
    const std::string_view keyword = entry.key();
    if (!contains(kAnnotations, keyword) && !contains(kKeywords, keyword)) {
      return refuse(ErrorCode::kUnsupported, path, fmt::format("keyword \"{}\" is not supported", keyword));
    }
  }
  const json::value* unique = member(schema, "uniqueItems");
  if (unique != nullptr && *unique != json::value(false)) {
    refuse(ErrorCode::kUnsupported, path, "keyword \"uniqueItems\" is not supported");
  }
  const json::value* type = member(schema, "type");
  if (type == nullptr) return;
  static constexpr std::array<std::string_view, 7> kTypes = {"null",   "boolean", "integer", "number",
                                                             "string", "array",   "object"};
  const std::vector<std::string_view> types = schema_types(schema);
  const bool shaped = type->is_string() || (type->is_array() && types.size() == type->get_array().size());
  if (!shaped || types.empty()) {
    return refuse(ErrorCode::kInvalidArgument, path,
                  "\"type\" must be the name of a type or a list of names");
  }
  for (const std::string_view one : types) {
    if (!contains(kTypes, one)) {
      refuse(ErrorCode::kInvalidArgument, path, fmt::format("\"type\": there is no type \"{}\"", one));
    }
  }
}

void SchemaGrammar::check_alone(const json::object& schema, const std::string& path, std::string_view keyword,
                                bool allow_type) {
  for (const auto& entry : schema) {
    const std::string_view other = entry.key();
    if (other == keyword || contains(kAnnotations, other) || (allow_type && other == "type")) continue;
    refuse(ErrorCode::kUnsupported, path,
           fmt::format("keyword \"{}\" next to \"{}\" is not supported", other, keyword));
  }
}

std::int32_t SchemaGrammar::rule_for(const json::value& schema, const std::string& path) {
  const auto [at, fresh] = rules_.emplace(&schema, -1);
  if (fresh) {
    at->second = builder_.add_rule(path.empty() ? name_ : fmt::format("{} at '{}'", name_, path));
    pending_.push_back({at->second, &schema, path});
  }
  return at->second;
}

void SchemaGrammar::finish() {
  while (!pending_.empty() && !builder_.failed()) {
    const Pending next = std::move(pending_.front());
    pending_.pop_front();
    const Rule rule = builder_.rule(next.rule);
    builder_.empty(emit(rule.start, *next.schema, next.path), rule.end);
  }
}

std::int32_t SchemaGrammar::emit(std::int32_t from, const json::value& schema, const std::string& path) {
  return emit_as(Form::kJson, from, schema, path, 0);
}

std::int32_t SchemaGrammar::emit_parameter(std::int32_t from, const json::value& schema,
                                           const std::string& path) {
  return emit_as(Form::kParameter, from, schema, path, 0);
}

std::int32_t SchemaGrammar::emit_as(Form form, std::int32_t from, const json::value& schema,
                                    const std::string& path, int refs) {
  if (builder_.failed()) return from;
  const auto anything = [&] {
    return builder_.called(from, form == Form::kJson ? json_.value() : json_.text_to_tag());
  };
  if (schema.is_bool()) {
    if (!schema.get_bool())
      refuse(ErrorCode::kUnsupported, path, "the schema false, which nothing satisfies");
    return anything();
  }
  if (!schema.is_object()) {
    refuse(ErrorCode::kInvalidArgument, path, "a schema must be an object or a boolean");
    return from;
  }
  const json::object& object = schema.get_object();
  check_keywords(object, path);
  if (builder_.failed()) return from;
  if (const json::value* ref = member(object, "$ref")) {
    check_alone(object, path, "$ref", false);
    return emit_ref(form, from, *ref, path, refs);
  }
  for (const char* keyword : {"anyOf", "oneOf", "allOf"}) {
    if (member(object, keyword) == nullptr) continue;
    check_alone(object, path, keyword, false);
    return emit_alternatives(form, from, object, keyword, path, refs);
  }
  for (const char* keyword : {"const", "enum"}) {
    if (member(object, keyword) == nullptr) continue;
    check_alone(object, path, keyword, true);
    return emit_values(form, from, object, path);
  }
  const std::vector<std::string_view> types = schema_types(object);
  if (types.empty()) return anything();
  const std::int32_t to = builder_.add_state();
  for (const std::string_view type : types) builder_.empty(emit_type(form, from, type, object, path), to);
  return to;
}

std::int32_t SchemaGrammar::emit_ref(Form form, std::int32_t from, const json::value& ref,
                                     const std::string& path, int refs) {
  const json::value* target = resolve_ref(root_, ref);
  if (target == nullptr) {
    refuse(ErrorCode::kInvalidArgument, path,
           fmt::format("\"$ref\" {} does not name a part of this schema", json::serialize(ref)));
    return from;
  }
  const std::string target_path(text_of(ref.get_string()).substr(1));
  if (form == Form::kJson) return builder_.called(from, rule_for(*target, target_path));
  if (refs >= kMaxRefs) {
    refuse(ErrorCode::kLimit, path, fmt::format("more than {} \"$ref\"s inside each other", kMaxRefs));
    return from;
  }
  return emit_as(form, from, *target, target_path, refs + 1);
}

std::int32_t SchemaGrammar::emit_alternatives(Form form, std::int32_t from, const json::object& schema,
                                              const char* keyword, const std::string& path, int refs) {
  const json::value* list = member(schema, keyword);
  if (!list->is_array() || list->get_array().empty()) {
    refuse(ErrorCode::kInvalidArgument, path, fmt::format("\"{}\" must be a list of schemas", keyword));
    return from;
  }
  const json::array& options = list->get_array();
  const std::string_view name = keyword;
  if (name == "allOf" && options.size() > 1) {
    refuse(ErrorCode::kUnsupported, path, "keyword \"allOf\" with several schemas is not supported");
  }
  if (name == "oneOf") {
    for (std::size_t i = 0; i < options.size() && !builder_.failed(); ++i) {
      for (std::size_t j = i + 1; j < options.size() && !builder_.failed(); ++j) {
        if (schemas_disjoint(root_, options[i], options[j])) continue;
        refuse(ErrorCode::kUnsupported, path,
               fmt::format(
                   "keyword \"oneOf\" is supported only when its schemas exclude each other, and numbers "
                   "{} and {} may not (\"anyOf\" does not ask for that)",
                   i, j));
      }
    }
  }
  const std::int32_t to = builder_.add_state();
  for (std::size_t i = 0; i < options.size() && !builder_.failed(); ++i) {
    builder_.empty(emit_as(form, from, options[i], child(path, name, i), refs), to);
  }
  return to;
}

std::int32_t SchemaGrammar::emit_values(Form form, std::int32_t from, const json::object& schema,
                                        const std::string& path) {
  std::vector<const json::value*> values;
  if (const json::value* one = member(schema, "const")) {
    values.push_back(one);
  } else {
    const json::value* list = member(schema, "enum");
    if (!list->is_array() || list->get_array().empty()) {
      refuse(ErrorCode::kInvalidArgument, path, "\"enum\" must be a list of values");
      return from;
    }
    for (const json::value& value : list->get_array()) values.push_back(&value);
  }
  const std::vector<std::string_view> types =
      member(schema, "type") == nullptr ? std::vector<std::string_view>() : schema_types(schema);
  const std::int32_t to = builder_.add_state();
  bool any = false;
  for (const json::value* value : values) {
    if (builder_.failed()) return from;
    const bool fits = types.empty() || std::any_of(types.begin(), types.end(), [&](std::string_view type) {
                        return has_type(*value, type);
                      });
    if (!fits) continue;
    any = true;
    std::string text;
    if (form == Form::kParameter && value->is_string()) {
      text = text_of(value->get_string());
    } else {
      text = python_json(*value);
    }
    if (json_.inside_call() && text.find('<') != std::string::npos) {
      refuse(ErrorCode::kUnsupported, path, fmt::format("the value {} holds markup", quoted(text)));
    }
    if (form == Form::kParameter) text += kParameterEndTag;
    builder_.empty(builder_.literal(from, text), to);
  }
  if (!any)
    refuse(ErrorCode::kInvalidArgument, path, "none of the listed values has the type that \"type\" names");
  return to;
}

std::int32_t SchemaGrammar::emit_type(Form form, std::int32_t from, std::string_view type,
                                      const json::object& schema, const std::string& path) {
  if (type == "string") return emit_string(form, from, schema, path);
  std::int32_t to = from;
  if (type == "null") to = builder_.literal(from, "null");
  if (type == "boolean") {
    to = builder_.add_state();
    for (const char* word : {"true", "false"}) builder_.empty(builder_.literal(from, word), to);
  }
  if (type == "integer") to = emit_number(from, schema, path, false);
  if (type == "number") to = emit_number(from, schema, path, true);
  if (type == "object") to = emit_object(from, schema, path);
  if (type == "array") to = emit_array(from, schema, path);
  return form == Form::kParameter ? builder_.literal(to, kParameterEndTag) : to;
}

std::optional<std::int64_t> SchemaGrammar::count(const json::object& schema, const char* keyword,
                                                 const std::string& path, std::int64_t limit) {
  const json::value* value = member(schema, keyword);
  if (value == nullptr) return {};
  std::int64_t number = -1;
  if (value->is_int64()) number = value->get_int64();
  if (value->is_uint64()) number = limit + 1;
  if (value->is_double() && has_type(*value, "integer") && value->get_double() >= 0) {
    number = value->get_double() > static_cast<double>(limit)
                 ? limit + 1
                 : static_cast<std::int64_t>(value->get_double());
  }
  if (number < 0) {
    refuse(ErrorCode::kInvalidArgument, path,
           fmt::format("\"{}\" must be a whole number from 0 on", keyword));
    return {};
  }
  if (number > limit) {
    refuse(ErrorCode::kLimit, path, fmt::format("\"{}\" is above the limit of {}", keyword, limit));
    return {};
  }
  return number;
}

std::int32_t SchemaGrammar::emit_string(Form form, std::int32_t from, const json::object& schema,
                                        const std::string& path) {
  const bool bare = form == Form::kParameter;
  const Spelling spelling = bare ? Spelling::kText : Spelling::kJsonString;
  const std::optional<std::int64_t> least = count(schema, "minLength", path, kMaxStringLength);
  const std::optional<std::int64_t> most = count(schema, "maxLength", path, kMaxStringLength);
  const json::value* pattern = member(schema, "pattern");
  const json::value* format = member(schema, "format");
  if ((pattern != nullptr && !pattern->is_string()) || (format != nullptr && !format->is_string())) {
    refuse(ErrorCode::kInvalidArgument, path, "\"pattern\" and \"format\" must be strings");
  }
  if (least && most && *least > *most) {
    refuse(ErrorCode::kInvalidArgument, path, "\"minLength\" is above \"maxLength\"");
  }
  if (builder_.failed()) return from;
  const bool lengths = least.value_or(0) > 0 || most;
  if (pattern == nullptr && format == nullptr && !lengths) {
    return builder_.called(from, bare ? json_.text_to_tag() : json_.string());
  }

  const std::string key = fmt::format("{}|{}|{}|{}|{}", bare ? "bare" : "string", least.value_or(0),
                                      most.value_or(-1), pattern == nullptr ? "" : json::serialize(*pattern),
                                      format == nullptr ? "" : json::serialize(*format));
  if (const auto known = scalars_.find(key); known != scalars_.end())
    return builder_.called(from, known->second);
  const bool inside_call = json_.inside_call();
  if (lengths && pattern == nullptr && format == nullptr && !inside_call) {
    const std::int32_t rule = json_.string_of_length(least.value_or(0), most.value_or(-1));
    scalars_[key] = rule;
    return builder_.called(from, rule);
  }

  std::vector<std::pair<Regex, RegexScope>> patterns;
  if (pattern != nullptr) {
    Result<Regex> regex = parse_regex(text_of(pattern->get_string()));
    if (!regex) {
      refuse(regex.error().code, path, "\"pattern\" " + regex.error().message);
      return from;
    }
    patterns.emplace_back(std::move(*regex), RegexScope::kSearch);
  }
  if (format != nullptr) {
    const std::string_view known = format_pattern(text_of(format->get_string()));
    if (known.empty()) {
      refuse(ErrorCode::kUnsupported, path,
             fmt::format("\"format\": {} is not supported", json::serialize(*format)));
      return from;
    }
    patterns.emplace_back(parse_regex(known).value(), RegexScope::kWhole);
  }
  if (std::max(least.value_or(0), most.value_or(0)) > kMaxPlainLength) {
    refuse(ErrorCode::kLimit, path,
           fmt::format("\"minLength\" and \"maxLength\" are limited to {} {}", kMaxPlainLength,
                       inside_call ? "in parameters of tools" : "next to \"pattern\" and \"format\""));
    return from;
  }

  const std::int32_t rule = builder_.add_rule("string");
  scalars_[key] = rule;
  std::int32_t state = builder_.rule(rule).start;
  if (!bare) state = builder_.literal(state, "\"");
  using Write = std::function<std::int32_t(GrammarBuilder&, std::int32_t)>;
  std::vector<Write> parts;
  for (const auto& [regex, scope] : patterns) {
    parts.emplace_back([&regex = regex, scope = scope, spelling](GrammarBuilder& part, std::int32_t start) {
      return emit_regex(part, start, regex, scope, spelling);
    });
  }
  if (lengths) {
    parts.emplace_back([&](GrammarBuilder& part, std::int32_t start) {
      return emit_length(part, start, least.value_or(0), most.value_or(-1), spelling);
    });
  }
  if (inside_call) parts.emplace_back(bare ? emit_text_without_tags : emit_json_chars_without_tags);
  if (parts.size() == 1) {
    state = parts[0](builder_, state);
  } else {
    GrammarLimits limits = builder_.limits();
    limits.automaton_states = kMaxProductStates;
    Result<ByteAutomaton> all = byte_automaton(limits, parts[0]);
    for (std::size_t i = 1; i < parts.size() && all; ++i) {
      const Result<ByteAutomaton> next = byte_automaton(limits, parts[i]);
      if (!next) {
        refuse(next.error().code, path, next.error().message);
        return from;
      }
      if (i + 1 == parts.size()) {
        state = emit_intersection(builder_, state, *all, *next);
      } else {
        const ByteAutomaton before = std::move(*all);
        all = byte_automaton(limits, [&](GrammarBuilder& part, std::int32_t start) {
          return emit_intersection(part, start, before, *next);
        });
      }
    }
    if (!all) {
      refuse(all.error().code, path, all.error().message);
      return from;
    }
  }
  builder_.empty(builder_.literal(state, bare ? kParameterEndTag : "\""), builder_.rule(rule).end);
  return builder_.called(from, rule);
}

std::int32_t SchemaGrammar::emit_number(std::int32_t from, const json::object& schema,
                                        const std::string& path, bool fractions) {
  NumberRange range;
  range.fractions = fractions;
  std::string key = fractions ? "number" : "integer";
  for (const char* keyword : {"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"}) {
    const json::value* value = member(schema, keyword);
    if (value == nullptr) continue;
    if (!value->is_number()) {
      refuse(ErrorCode::kInvalidArgument, path, fmt::format("\"{}\" must be a number", keyword));
      return from;
    }
    const Result<Decimal> decimal = value->is_int64() ? Result<Decimal>(to_decimal(value->get_int64()))
                                                      : to_decimal(value->to_number<double>());
    if (!decimal || decimal->whole.size() > kRangeDigits) {
      refuse(ErrorCode::kUnsupported, path,
             fmt::format("\"{}\": a bound with more than {} digits is not supported", keyword, kRangeDigits));
      return from;
    }
    const std::string_view name = keyword;
    NumberBound bound{.value = *decimal, .exclusive = name.starts_with("exclusive")};
    std::optional<NumberBound>& side = name.ends_with("inimum") ? range.low : range.high;
    if (side) {
      refuse(ErrorCode::kUnsupported, path,
             fmt::format("\"{}\" next to another bound of that side", keyword));
      return from;
    }
    side = std::move(bound);
    key += fmt::format("|{}{}", keyword, json::serialize(*value));
  }
  if (const json::value* multiple = member(schema, "multipleOf")) {
    const bool whole = multiple->is_number() && has_type(*multiple, "integer");
    const double divisor = whole ? multiple->to_number<double>() : 0;
    if (divisor < 1 || divisor > static_cast<double>(kMaxMultiple)) {
      refuse(ErrorCode::kUnsupported, path,
             fmt::format("\"multipleOf\" is supported for whole numbers from 1 to {}", kMaxMultiple));
      return from;
    }
    // Multiples of a whole number are whole.
    range.fractions = false;
    range.multiple_of = static_cast<std::int64_t>(divisor);
    key += fmt::format("|multipleOf{}", range.multiple_of);
  }
  if (range.fractions == fractions && !range.bounded()) {
    return builder_.called(from, fractions ? json_.number() : json_.integer());
  }
  std::int32_t& rule = scalars_.emplace(key, -1).first->second;
  if (rule < 0) {
    rule = builder_.add_rule(fmt::format("{} at '{}'", name_, path));
    const Rule added = builder_.rule(rule);
    builder_.empty(emit_number_range(builder_, added.start, range), added.end);
  }
  return builder_.called(from, rule);
}

std::int32_t SchemaGrammar::emit_object(std::int32_t from, const json::object& schema,
                                        const std::string& path) {
  static const json::object kNone;
  const json::object* properties = &kNone;
  if (const json::value* value = member(schema, "properties")) {
    if (!value->is_object()) {
      refuse(ErrorCode::kInvalidArgument, path, "\"properties\" must be an object");
      return from;
    }
    properties = &value->get_object();
  }
  std::map<std::string_view, bool> required;
  if (const json::value* value = member(schema, "required")) {
    const bool names =
        value->is_array() && std::all_of(value->get_array().begin(), value->get_array().end(),
                                         [](const json::value& name) { return name.is_string(); });
    if (!names) {
      refuse(ErrorCode::kInvalidArgument, path, "\"required\" must be a list of names");
      return from;
    }
    for (const json::value& name : value->get_array()) {
      const std::string_view text = text_of(name.get_string());
      if (member(*properties, text) == nullptr) {
        refuse(ErrorCode::kUnsupported, path,
               fmt::format("\"required\" names {}, which \"properties\" does not declare", quoted(text)));
        return from;
      }
      required[text] = true;
    }
  }
  const json::value* extra = member(schema, "additionalProperties");
  if (extra != nullptr && extra->is_bool() && !extra->get_bool()) extra = nullptr;
  if (member(schema, "properties") == nullptr && member(schema, "additionalProperties") == nullptr) {
    return builder_.called(from, json_.object());
  }

  // Two chains over the properties: before the first one that is written, and behind one.
  const std::int32_t end = builder_.add_state();
  std::int32_t none = builder_.called(builder_.literal(from, "{"), json_.space());
  std::int32_t some = -1;
  const auto key_state = [&] {
    const std::int32_t key = builder_.add_state();
    if (none >= 0) builder_.empty(none, key);
    if (some >= 0) builder_.empty(builder_.called(builder_.literal(some, ","), json_.space()), key);
    return key;
  };
  for (const auto& entry : *properties) {
    if (builder_.failed()) return from;
    const std::string_view name = entry.key();
    const std::int32_t colon = builder_.literal(key_state(), quoted(name) + ":");
    // A state of its own, into which later properties may skip.
    const std::int32_t behind = builder_.add_state();
    builder_.empty(
        emit(builder_.called(colon, json_.space()), entry.value(), child(child(path, "properties"), name)),
        behind);
    if (required.contains(name)) {
      none = -1;
    } else if (some >= 0) {
      builder_.empty(some, behind);
    }
    some = behind;
  }
  if (extra != nullptr) {
    std::vector<std::string> names;
    for (const auto& entry : *properties) names.emplace_back(entry.key());
    const std::int32_t key = builder_.add_state();
    builder_.empty(key_state(), key);
    const std::int32_t colon = builder_.literal(builder_.called(key, json_.key_except(names)), ":");
    const std::int32_t behind = builder_.called(builder_.called(colon, json_.space()),
                                                rule_for(*extra, child(path, "additionalProperties")));
    builder_.empty(builder_.called(builder_.literal(behind, ","), json_.space()), key);
    if (some >= 0) builder_.empty(some, behind);
    some = behind;
  }
  if (none >= 0) builder_.empty(builder_.literal(none, "}"), end);
  if (some >= 0) builder_.empty(builder_.literal(builder_.called(some, json_.space()), "}"), end);
  return end;
}

std::int32_t SchemaGrammar::emit_array(std::int32_t from, const json::object& schema,
                                       const std::string& path) {
  static const json::value kAnything(true);
  const json::value* items = member(schema, "items");
  const json::value* fixed = member(schema, "prefixItems");
  if (fixed != nullptr && !fixed->is_array()) {
    refuse(ErrorCode::kInvalidArgument, path, "\"prefixItems\" must be a list of schemas");
    return from;
  }
  if (items != nullptr && items->is_array()) {
    refuse(ErrorCode::kUnsupported, path,
           "\"items\" with a list is not supported (it is \"prefixItems\" now)");
    return from;
  }
  const std::int64_t least = count(schema, "minItems", path, kMaxArrayItems).value_or(0);
  std::optional<std::int64_t> most = count(schema, "maxItems", path, kMaxArrayItems);
  const std::size_t prefix = fixed == nullptr ? 0 : fixed->get_array().size();
  const bool closed = items != nullptr && items->is_bool() && !items->get_bool();
  if (closed) most = std::min(most.value_or(kMaxArrayItems), static_cast<std::int64_t>(prefix));
  if (most && least > *most) {
    refuse(ErrorCode::kInvalidArgument, path, "\"minItems\" asks for more items than there may be");
  }
  if (builder_.failed()) return from;
  if (items == nullptr && prefix == 0 && least == 0 && !most) return builder_.called(from, json_.array());
  if (items == nullptr) items = &kAnything;

  const auto item = [&](std::int32_t before, std::size_t at) {
    if (at < prefix) return emit(before, fixed->get_array()[at], child(path, "prefixItems", at));
    return builder_.called(before,
                           items == &kAnything ? json_.value() : rule_for(*items, child(path, "items")));
  };
  const std::int32_t end = builder_.add_state();
  const std::int32_t closing = builder_.add_state();  // behind an item
  builder_.empty(builder_.literal(builder_.called(closing, json_.space()), "]"), end);
  std::int32_t state = builder_.called(builder_.literal(from, "["), json_.space());
  const auto separated = [&](std::int32_t before) {
    return builder_.called(builder_.literal(before, ","), json_.space());
  };
  for (std::size_t at = 0; !builder_.failed(); ++at) {
    const auto taken = static_cast<std::int64_t>(at);
    if (taken >= least) {
      if (at == 0) {
        builder_.empty(builder_.literal(state, "]"), end);
      } else {
        builder_.empty(state, closing);
      }
    }
    if (most && taken == *most) break;
    if (!most && at > prefix && taken > least) {
      // From here on one item is like the next.
      builder_.empty(item(separated(state), at), state);
      break;
    }
    const std::int32_t behind = builder_.add_state();
    builder_.empty(item(at == 0 ? state : separated(state), at), behind);
    state = behind;
  }
  return end;
}

}  // namespace mimo::grammar
