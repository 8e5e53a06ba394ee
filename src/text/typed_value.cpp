#include "text/typed_value.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>

namespace mimo {
namespace {

// Nesting of anyOf, $ref and the like that is followed; schemas come from clients and may refer to themselves.
constexpr int kMaxDepth = 16;
// Schemas looked at for one value: nested alternatives multiply.
constexpr int kMaxSchemas = 256;
// Of a JSON value: one less than parse_json allows, so that an object of values can be read as well.
constexpr std::size_t kMaxValueDepth = JsonLimits{}.max_depth - 1;

enum Type : unsigned {
  kNull = 1,
  kBoolean = 2,
  kInteger = 4,
  kNumber = 8,
  kObject = 16,
  kArray = 32,
  kString = 64,
};

std::string_view view(const json::string& text) { return {text.data(), text.size()}; }

unsigned type_named(std::string_view name) {
  if (name == "null") return kNull;
  if (name == "boolean") return kBoolean;
  if (name == "integer") return kInteger;
  if (name == "number") return kNumber;
  if (name == "object") return kObject;
  if (name == "array") return kArray;
  if (name == "string") return kString;
  return 0;
}

unsigned type_of(const json::value& value) {
  switch (value.kind()) {
    case json::kind::null:
      return kNull;
    case json::kind::bool_:
      return kBoolean;
    case json::kind::int64:
    case json::kind::uint64:
      return kInteger;
    case json::kind::double_:
      return kNumber;
    case json::kind::object:
      return kObject;
    case json::kind::array:
      return kArray;
    case json::kind::string:
      return kString;
  }
  return 0;
}

class TypeCollector {
 public:
  explicit TypeCollector(const json::value& root) : root_(root) {}

  // 0: nothing is declared.
  unsigned types(const json::value& schema, int depth) {
    const json::object* object = schema.if_object();
    if (object == nullptr || depth > kMaxDepth || ++seen_ > kMaxSchemas) return 0;
    unsigned found = 0;
    if (const json::value* type = object->if_contains("type")) {
      if (type->is_string()) found |= type_named(view(type->get_string()));
      if (type->is_array()) {
        for (const json::value& one : type->get_array()) {
          if (one.is_string()) found |= type_named(view(one.get_string()));
        }
      }
    }
    if (found != 0) return found;
    if (const json::value* ref = object->if_contains("$ref"); ref != nullptr && ref->is_string()) {
      if (const json::value* target = resolve(view(ref->get_string()))) found |= types(*target, depth + 1);
    }
    for (const char* key : {"anyOf", "oneOf", "allOf"}) {
      const json::value* list = object->if_contains(key);
      if (list == nullptr || !list->is_array()) continue;
      for (const json::value& one : list->get_array()) found |= types(one, depth + 1);
    }
    if (const json::value* list = object->if_contains("enum"); list != nullptr && list->is_array()) {
      for (const json::value& one : list->get_array()) found |= type_of(one);
    }
    if (const json::value* one = object->if_contains("const")) found |= type_of(*one);
    return found;
  }

 private:
  const json::value* resolve(std::string_view ref) const {
    if (!ref.starts_with("#")) return nullptr;
    json::error_code error;
    const json::value* target = root_.find_pointer(json::string_view(ref.data() + 1, ref.size() - 1), error);
    return error ? nullptr : target;
  }

  const json::value& root_;
  int seen_ = 0;
};

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1);
}

std::optional<bool> as_boolean(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  if (lower == "true") return true;
  if (lower == "false") return false;
  return {};
}

// A JSON number that was written with a fraction or exponent but has an integer's value.
std::optional<json::value> as_integer(const json::value& parsed) {
  if (!parsed.is_double()) return {};
  const double number = parsed.get_double();
  // 2^53: beyond it a double does not say which integer was meant.
  if (number != std::floor(number) || std::abs(number) > 9007199254740992.0) return {};
  return json::value(static_cast<std::int64_t>(number));
}

// The value that a text stands for. `as_written`: the text itself is its JSON.
struct Converted {
  json::value value;
  bool as_written = false;
};

std::optional<Converted> convert(std::string_view inner, unsigned types) {
  if ((types & kNull) != 0 && inner == "null") return Converted{.value = nullptr, .as_written = true};
  if ((types & kBoolean) != 0) {
    if (const std::optional<bool> boolean = as_boolean(inner)) return Converted{.value = *boolean};
  }
  constexpr unsigned kParsed = kInteger | kNumber | kObject | kArray;
  if (types != 0 && (types & kParsed) == 0) return {};
  const Result<json::value> parsed = parse_json(inner, "value", {.max_depth = kMaxValueDepth});
  if (!parsed) return {};
  const auto written = [&] { return Converted{.value = *parsed, .as_written = true}; };
  if (types == 0) {
    if (parsed->is_string() || parsed->is_null()) return {};
    return written();
  }
  if ((types & kInteger) != 0) {
    if (parsed->is_int64() || parsed->is_uint64()) return written();
    if (const std::optional<json::value> integer = as_integer(*parsed)) return Converted{.value = *integer};
  }
  if ((types & kNumber) != 0 && parsed->is_number()) return written();
  if ((types & kObject) != 0 && parsed->is_object()) return written();
  if ((types & kArray) != 0 && parsed->is_array()) return written();
  return {};
}

}  // namespace

bool DeclaredTypes::only_string() const { return bits == kString; }

DeclaredTypes declared_types(const json::value* schema, const json::value& root) {
  return {schema == nullptr ? 0 : TypeCollector(root).types(*schema, 0)};
}

std::string typed_json(std::string_view text, DeclaredTypes types) {
  if (!types.only_string()) {
    const std::string_view inner = trimmed(text);
    const std::optional<Converted> converted = convert(inner, types.bits);
    if (converted) return converted->as_written ? std::string(inner) : json::serialize(converted->value);
  }
  return json::serialize(json::string_view(text.data(), text.size()));
}

}  // namespace mimo
