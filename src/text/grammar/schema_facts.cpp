#include "text/grammar/schema_facts.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <utility>

namespace mimo::grammar {
namespace {

constexpr int kMaxRefs = 8;           // in a row
constexpr int kMaxDisjointDepth = 4;  // properties of properties
// Names compared for one pair of schemas; more are not looked at.
constexpr std::int64_t kMaxDisjointEffort = 20'000;

const json::value* follow(const json::value& root, const json::value& schema) {
  const json::value* at = &schema;
  for (int i = 0; i < kMaxRefs && at != nullptr; ++i) {
    const json::value* ref = at->is_object() ? member(at->get_object(), "$ref") : nullptr;
    if (ref == nullptr) return at;
    at = resolve_ref(root, *ref);
  }
  return nullptr;
}

// Values of enum or const; none: neither is there.
std::vector<const json::value*> listed_values(const json::object& schema) {
  std::vector<const json::value*> out;
  if (const json::value* one = member(schema, "const")) out.push_back(one);
  if (const json::value* list = member(schema, "enum"); out.empty() && list != nullptr && list->is_array()) {
    for (const json::value& value : list->get_array()) out.push_back(&value);
  }
  return out;
}

std::vector<std::string_view> types_of(const json::object& schema) {
  std::vector<std::string_view> types = schema_types(schema);
  if (!types.empty()) return types;
  for (const json::value* value : listed_values(schema)) types.push_back(type_name(*value));
  return types;
}

bool types_overlap(std::string_view a, std::string_view b) {
  const auto number = [](std::string_view type) { return type == "number" || type == "integer"; };
  return a == b || (number(a) && number(b));
}

bool requires_key(const json::object& schema, std::string_view key, std::int64_t& effort) {
  const json::value* list = member(schema, "required");
  if (list == nullptr || !list->is_array() || effort < 0) return false;
  effort -= static_cast<std::int64_t>(list->get_array().size()) + 1;
  return std::any_of(list->get_array().begin(), list->get_array().end(), [&](const json::value& name) {
    return name.is_string() && text_of(name.get_string()) == key;
  });
}

const json::object* properties_of(const json::object& schema) {
  const json::value* properties = member(schema, "properties");
  return properties == nullptr ? nullptr : properties->if_object();
}

// What is written for the schema has no keys but the declared ones.
bool writes_declared_only(const json::object& schema) {
  const json::value* extra = member(schema, "additionalProperties");
  return properties_of(schema) != nullptr && (extra == nullptr || *extra == json::value(false));
}

// No object that is written for `a` satisfies `b`.
bool misses(const json::object& a, const json::object& b, std::int64_t& effort) {
  const json::object* declared_a = properties_of(a);
  const json::object* declared_b = properties_of(b);
  if (declared_a == nullptr || declared_b == nullptr) return false;
  if (writes_declared_only(a)) {
    for (const auto& entry : *declared_b) {
      if (requires_key(b, entry.key(), effort) && !declared_a->contains(entry.key())) return true;
    }
  }
  const json::value* extra = member(b, "additionalProperties");
  if (extra != nullptr && *extra == json::value(false)) {
    for (const auto& entry : *declared_a) {
      if (requires_key(a, entry.key(), effort) && !declared_b->contains(entry.key())) return true;
    }
  }
  return false;
}

bool disjoint(const json::value& root, const json::value& first, const json::value& second, int depth,
              std::int64_t& effort) {
  if (depth > kMaxDisjointDepth || --effort < 0) return false;
  const json::value* one = follow(root, first);
  const json::value* other = follow(root, second);
  if (one == nullptr || other == nullptr || !one->is_object() || !other->is_object()) return false;
  const json::object& a = one->get_object();
  const json::object& b = other->get_object();

  const std::vector<std::string_view> types_a = types_of(a);
  const std::vector<std::string_view> types_b = types_of(b);
  if (types_a.empty() || types_b.empty()) return false;
  bool overlap = false;
  bool only_objects = true;
  for (const std::string_view x : types_a) {
    for (const std::string_view y : types_b) {
      if (!types_overlap(x, y)) continue;
      overlap = true;
      if (x != "object") only_objects = false;
    }
  }
  if (!overlap) return true;

  const std::vector<const json::value*> values_a = listed_values(a);
  const std::vector<const json::value*> values_b = listed_values(b);
  effort -= static_cast<std::int64_t>(values_a.size() * values_b.size());
  if (effort < 0) return false;
  if (!values_a.empty() && !values_b.empty()) {
    return std::none_of(values_a.begin(), values_a.end(), [&](const json::value* x) {
      return std::any_of(values_b.begin(), values_b.end(), [&](const json::value* y) {
        return *x == *y || (x->is_number() && y->is_number());
      });
    });
  }
  if (!only_objects) return false;

  const json::object* properties_a = properties_of(a);
  const json::object* properties_b = properties_of(b);
  if (properties_a == nullptr || properties_b == nullptr) return false;
  for (const auto& entry : *properties_a) {
    const json::value* same = member(*properties_b, entry.key());
    if (same != nullptr && requires_key(a, entry.key(), effort) && requires_key(b, entry.key(), effort) &&
        disjoint(root, entry.value(), *same, depth + 1, effort)) {
      return true;
    }
  }
  return misses(a, b, effort) && misses(b, a, effort);
}

}  // namespace

const json::value* member(const json::object& object, std::string_view key) {
  return object.if_contains(json::string_view(key.data(), key.size()));
}

std::string_view text_of(const json::string& text) { return {text.data(), text.size()}; }

const json::value* resolve_ref(const json::value& root, const json::value& ref) {
  if (!ref.is_string() || !text_of(ref.get_string()).starts_with('#')) return nullptr;
  const std::string_view pointer = text_of(ref.get_string()).substr(1);
  json::error_code error;
  const json::value* target = root.find_pointer(json::string_view(pointer.data(), pointer.size()), error);
  return error ? nullptr : target;
}

std::vector<std::string_view> schema_types(const json::object& schema) {
  std::vector<std::string_view> out;
  if (const json::value* type = member(schema, "type")) {
    if (type->is_string()) out.push_back(text_of(type->get_string()));
    if (type->is_array()) {
      for (const json::value& one : type->get_array()) {
        if (one.is_string()) out.push_back(text_of(one.get_string()));
      }
    }
    return out;
  }
  struct Hint {
    std::string_view type;
    std::vector<std::string_view> keywords;
  };
  static const std::array<Hint, 4> kHints = {
      {{"object", {"properties", "required", "additionalProperties"}},
       {"array", {"items", "prefixItems", "minItems", "maxItems", "uniqueItems"}},
       {"string", {"pattern", "format", "minLength", "maxLength"}},
       {"number", {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}}}};
  for (const Hint& hint : kHints) {
    const bool about = std::any_of(hint.keywords.begin(), hint.keywords.end(), [&](std::string_view keyword) {
      return member(schema, keyword) != nullptr;
    });
    if (about) out.push_back(hint.type);
  }
  return out;
}

std::string_view type_name(const json::value& value) {
  switch (value.kind()) {
    case json::kind::null:
      return "null";
    case json::kind::bool_:
      return "boolean";
    case json::kind::int64:
    case json::kind::uint64:
      return "integer";
    case json::kind::double_:
      return value.get_double() == std::floor(value.get_double()) ? "integer" : "number";
    case json::kind::string:
      return "string";
    case json::kind::array:
      return "array";
    case json::kind::object:
      return "object";
  }
  return "";
}

bool has_type(const json::value& value, std::string_view type) {
  const std::string_view own = type_name(value);
  return own == type || (own == "integer" && type == "number");
}

bool schemas_disjoint(const json::value& root, const json::value& a, const json::value& b) {
  std::int64_t effort = kMaxDisjointEffort;
  return disjoint(root, a, b, 0, effort);
}

// All of them stay within what validators agree on: no leap days and leap seconds, letters in ASCII.
std::string_view format_pattern(std::string_view format) {
#define MIMO_DATE                                                                                   \
  "[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)" \
  "|02-(?:0[1-9]|1[0-9]|2[0-8]))"
#define MIMO_TIME \
  "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,6})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
#define MIMO_LABEL "[A-Za-z0-9](?:[A-Za-z0-9-]{0,20}[A-Za-z0-9])?"
#define MIMO_HOST MIMO_LABEL "(?:\\." MIMO_LABEL "){0,5}"
#define MIMO_OCTET "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
#define MIMO_HEX4 "[0-9A-Fa-f]{1,4}"
  static constexpr std::pair<std::string_view, std::string_view> kFormats[] = {
      {"date", MIMO_DATE},
      {"time", MIMO_TIME},
      {"date-time", MIMO_DATE "T" MIMO_TIME},
      {"duration",
       "P(?:[0-9]{1,6}W|(?:[0-9]{1,6}Y(?:[0-9]{1,6}M(?:[0-9]{1,6}D)?)?|[0-9]{1,6}M(?:[0-9]{1,6}D)?|[0-9]{1,6}"
       "D)"
       "(?:T(?:[0-9]{1,6}H(?:[0-9]{1,6}M(?:[0-9]{1,6}S)?)?|[0-9]{1,6}M(?:[0-9]{1,6}S)?|[0-9]{1,6}S))?"
       "|T(?:[0-9]{1,6}H(?:[0-9]{1,6}M(?:[0-9]{1,6}S)?)?|[0-9]{1,6}M(?:[0-9]{1,6}S)?|[0-9]{1,6}S))"},
      {"email",
       "[A-Za-z0-9_+-]{1,32}(?:\\.[A-Za-z0-9_+-]{1,24}){0,3}@" MIMO_LABEL "(?:\\." MIMO_LABEL "){1,4}"},
      {"hostname", MIMO_HOST},
      {"ipv4", MIMO_OCTET "(?:\\." MIMO_OCTET "){3}"},
      {"ipv6", "(?:" MIMO_HEX4 ":){7}" MIMO_HEX4 "|::(?:" MIMO_HEX4 "(?::" MIMO_HEX4 "){0,5})?|" MIMO_HEX4
               "::(?:" MIMO_HEX4 "(?::" MIMO_HEX4 "){0,4})?|" MIMO_HEX4 ":" MIMO_HEX4 "::(?:" MIMO_HEX4
               "(?::" MIMO_HEX4 "){0,3})?"},
      {"uuid", "[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"},
      {"uri", "[a-z][a-z0-9+-]{0,15}://" MIMO_HOST "(?::[0-9]{1,4})?(?:/[A-Za-z0-9._~!$&'()*+,;=:@-]*)*"
              "(?:\\?[A-Za-z0-9._~!$&'()*+,;=:@/-]*)?(?:#[A-Za-z0-9._~!$&'()*+,;=:@/-]*)?"},
  };
#undef MIMO_DATE
#undef MIMO_TIME
#undef MIMO_LABEL
#undef MIMO_HOST
#undef MIMO_OCTET
#undef MIMO_HEX4
  for (const auto& [name, pattern] : kFormats) {
    if (name == format) return pattern;
  }
  return {};
}

}  // namespace mimo::grammar
