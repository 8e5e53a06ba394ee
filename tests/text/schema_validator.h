// A JSON schema validator for tests: small, slow and written from the standard, so that it shares no idea with
// the grammars it judges.
#pragma once

#include <cmath>
#include <optional>
#include <regex>
#include <string>

#include "core/json.h"
#include "text/unicode_utf8.h"

namespace mimo::test {

class SchemaValidator {
 public:
  explicit SchemaValidator(const json::value& root) : root_(root) {}

  // What is wrong with `value`; empty: nothing.
  std::string check(const json::value& value) const { return check(value, root_); }

  std::string check(const json::value& value, const json::value& schema) const {
    if (schema.is_bool()) return schema.get_bool() ? "" : "false schema";
    const json::object& s = schema.as_object();
    const auto wrong = [&](const char* keyword) {
      return std::string(keyword) + " of " + json::serialize(schema) + " by " + json::serialize(value);
    };
    if (const auto* ref = s.if_contains("$ref")) {
      const std::string pointer = std::string(ref->as_string()).substr(1);
      json::error_code error;
      const json::value* target = root_.find_pointer(pointer, error);
      if (target == nullptr) return wrong("$ref");
      if (std::string what = check(value, *target); !what.empty()) return what;
    }
    if (const auto* type = s.if_contains("type"); type != nullptr && !has_any_type(value, *type))
      return wrong("type");
    if (const auto* one = s.if_contains("const"); one != nullptr && !(*one == value)) return wrong("const");
    if (const auto* list = s.if_contains("enum")) {
      bool found = false;
      for (const auto& one : list->as_array()) found = found || one == value;
      if (!found) return wrong("enum");
    }
    if (const auto* list = s.if_contains("anyOf"); list != nullptr && fitting(value, *list) == 0)
      return wrong("anyOf");
    if (const auto* list = s.if_contains("oneOf"); list != nullptr && fitting(value, *list) != 1)
      return wrong("oneOf");
    if (const auto* list = s.if_contains("allOf");
        list != nullptr && fitting(value, *list) != list->as_array().size()) {
      return wrong("allOf");
    }
    if (value.is_string())
      return check_string(std::string(value.as_string()), s).empty()
                 ? ""
                 : wrong(check_string(std::string(value.as_string()), s).c_str());
    if (value.is_number()) {
      const double x = value.to_number<double>();
      const auto bound = [&](const char* key) { return s.if_contains(key); };
      if (const auto* b = bound("minimum"); b != nullptr && x < b->to_number<double>())
        return wrong("minimum");
      if (const auto* b = bound("maximum"); b != nullptr && x > b->to_number<double>())
        return wrong("maximum");
      if (const auto* b = bound("exclusiveMinimum"); b != nullptr && x <= b->to_number<double>()) {
        return wrong("exclusiveMinimum");
      }
      if (const auto* b = bound("exclusiveMaximum"); b != nullptr && x >= b->to_number<double>()) {
        return wrong("exclusiveMaximum");
      }
      if (const auto* b = bound("multipleOf"); b != nullptr && std::fmod(x, b->to_number<double>()) != 0) {
        return wrong("multipleOf");
      }
    }
    if (value.is_array()) return check_array(value.as_array(), s, schema);
    if (value.is_object()) return check_object(value.as_object(), s, schema);
    return "";
  }

 private:
  static bool has_type(const json::value& value, std::string_view type) {
    if (type == "null") return value.is_null();
    if (type == "boolean") return value.is_bool();
    if (type == "string") return value.is_string();
    if (type == "array") return value.is_array();
    if (type == "object") return value.is_object();
    if (type == "number") return value.is_number();
    return value.is_int64() || value.is_uint64() ||
           (value.is_double() && value.as_double() == std::floor(value.as_double()));
  }

  static bool has_any_type(const json::value& value, const json::value& type) {
    if (type.is_string()) return has_type(value, std::string(type.as_string()));
    for (const auto& one : type.as_array()) {
      if (has_type(value, std::string(one.as_string()))) return true;
    }
    return false;
  }

  std::size_t fitting(const json::value& value, const json::value& list) const {
    std::size_t count = 0;
    for (const auto& one : list.as_array()) count += check(value, one).empty() ? 1 : 0;
    return count;
  }

  static std::string check_string(const std::string& text, const json::object& s) {
    std::int64_t length = 0;
    for (std::size_t i = 0; i < text.size(); i += utf8_read(text, i).length) ++length;
    if (const auto* b = s.if_contains("minLength"); b != nullptr && length < b->as_int64())
      return "minLength";
    if (const auto* b = s.if_contains("maxLength"); b != nullptr && length > b->as_int64())
      return "maxLength";
    if (const auto* pattern = s.if_contains("pattern")) {
      if (!std::regex_search(text, std::regex(std::string(pattern->as_string())))) return "pattern";
    }
    if (const auto* format = s.if_contains("format")) {
      const std::string name(format->as_string());
      if (!fits_format(text, name)) return "format";
    }
    return "";
  }

  static bool fits_format(const std::string& text, const std::string& name) {
    int y = 0, m = 0, d = 0, h = 0, min = 0, sec = 0, used = 0;
    if (name == "date" || name == "date-time") {
      if (std::sscanf(text.c_str(), "%4d-%2d-%2d%n", &y, &m, &d, &used) != 3 || used != 10) return false;
      const int days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
      if (m < 1 || m > 12 || d < 1 || d > days[m - 1]) return false;
      return name == "date" ? text.size() == 10 : text[10] == 'T' && fits_format(text.substr(11), "time");
    }
    if (name == "time") {
      if (std::sscanf(text.c_str(), "%2d:%2d:%2d%n", &h, &min, &sec, &used) != 3 || used != 8) return false;
      return h < 24 && min < 60 && sec < 60 && (text.back() == 'Z' || text[text.size() - 3] == ':');
    }
    if (name == "ipv4") {
      int a = 0, b = 0, c = 0;
      char rest = 0;
      return std::sscanf(text.c_str(), "%3d.%3d.%3d.%3d%c", &a, &b, &c, &d, &rest) == 4 && a < 256 &&
             b < 256 && c < 256 && d < 256;
    }
    if (name == "uuid") return text.size() == 36 && text[8] == '-' && text[13] == '-' && text[23] == '-';
    if (name == "email") return text.find('@') != std::string::npos && text.find('@') == text.rfind('@');
    if (name == "uri") return text.find("://") != std::string::npos;
    if (name == "duration") return text.size() >= 3 && text[0] == 'P';
    return !text.empty();
  }

  std::string check_array(const json::array& items, const json::object& s, const json::value& schema) const {
    const auto size = static_cast<std::int64_t>(items.size());
    if (const auto* b = s.if_contains("minItems"); b != nullptr && size < b->as_int64()) return "minItems";
    if (const auto* b = s.if_contains("maxItems"); b != nullptr && size > b->as_int64()) return "maxItems";
    const auto* prefix = s.if_contains("prefixItems");
    for (std::size_t i = 0; i < items.size(); ++i) {
      const json::value* item = s.if_contains("items");
      if (prefix != nullptr && i < prefix->as_array().size()) item = &prefix->as_array()[i];
      if (item == nullptr) continue;
      if (std::string what = check(items[i], *item); !what.empty()) return what;
    }
    (void)schema;
    return "";
  }

  std::string check_object(const json::object& object, const json::object& s,
                           const json::value& schema) const {
    if (const auto* required = s.if_contains("required")) {
      for (const auto& name : required->as_array()) {
        if (!object.contains(name.as_string()))
          return "required " + json::serialize(name) + " " + json::serialize(schema);
      }
    }
    const auto* properties = s.if_contains("properties");
    const auto* extra = s.if_contains("additionalProperties");
    for (const auto& entry : object) {
      const json::value* own =
          properties == nullptr ? nullptr : properties->as_object().if_contains(entry.key());
      if (own == nullptr) own = extra;
      if (own == nullptr) continue;
      if (std::string what = check(entry.value(), *own); !what.empty()) return what;
    }
    return "";
  }

  const json::value& root_;
};

}  // namespace mimo::test
