#include "api/object_reader.h"

#include <algorithm>
#include <cmath>

#include "text/python_json.h"
#include "text/unicode_utf8.h"

namespace mimo {
namespace {

constexpr std::size_t kShownBytes = 60;
// For a line in the log.
constexpr std::size_t kMaxUnread = 32;
// Above it a double no longer holds every integer.
constexpr double kExactIntegers = 9007199254740992.0;

}  // namespace

void RequestProblem::add(std::string_view path, std::string_view message) {
  add(field_error(std::string(path),
                  path.empty() ? std::string(message) : fmt::format("{}: {}", path, message)));
}

void RequestProblem::add(ApiError error) {
  if (!error_) error_ = std::move(error);
}

std::string_view as_view(const json::string& text) { return {text.data(), text.size()}; }

std::string shown_value(const json::value& value) {
  switch (value.kind()) {
    case json::kind::null:
      return "null";
    case json::kind::bool_:
      return value.get_bool() ? "true" : "false";
    case json::kind::int64:
      return std::to_string(value.get_int64());
    case json::kind::uint64:
      return std::to_string(value.get_uint64());
    case json::kind::double_:
      return python_json_float(value.get_double());
    case json::kind::string: {
      const std::string_view text = as_view(value.get_string());
      std::string shown;
      append_python_json_string(shown, utf8_replace_invalid(text.substr(0, kShownBytes)), false);
      if (text.size() > kShownBytes) shown += "...";
      return shown;
    }
    case json::kind::array:
      return fmt::format("a list of {}", value.get_array().size());
    case json::kind::object:
      return "an object";
  }
  return "?";
}

std::optional<std::int64_t> as_integer(const json::value& value) {
  if (const std::int64_t* number = value.if_int64()) return *number;
  if (const double* number = value.if_double()) {
    if (std::abs(*number) <= kExactIntegers && *number == std::floor(*number)) {
      return static_cast<std::int64_t>(*number);
    }
  }
  return {};
}

const json::value* ObjectReader::value(std::string_view key) {
  ignore(key);
  if (problem_->found()) return nullptr;
  const json::value* value = fields_->if_contains(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

std::optional<bool> ObjectReader::boolean(std::string_view key) {
  const json::value* found = value(key);
  if (found == nullptr) return {};
  if (found->is_bool()) return found->get_bool();
  refuse(key, "true or false");
  return {};
}

std::optional<std::int64_t> ObjectReader::integer(std::string_view key, std::int64_t min, std::int64_t max) {
  const json::value* found = value(key);
  if (found == nullptr) return {};
  const std::optional<std::int64_t> number = as_integer(*found);
  if (number && *number >= min && *number <= max) return number;
  // 2^63 is an integer of at least 1: say where the range ends.
  const bool open = max == kMaxInteger && !found->is_uint64();
  if (!open) {
    refuse(key, fmt::format("an integer from {} to {}", min, max));
  } else if (min == -kMaxInteger - 1) {
    refuse(key, "an integer");
  } else {
    refuse(key, fmt::format("an integer of at least {}", min));
  }
  return {};
}

std::optional<double> ObjectReader::number(std::string_view key) {
  const json::value* found = value(key);
  if (found == nullptr) return {};
  if (found->is_number()) return found->to_number<double>();
  refuse(key, "a number");
  return {};
}

std::optional<std::string> ObjectReader::text(std::string_view key) {
  const json::value* found = value(key);
  if (found == nullptr) return {};
  if (found->is_string()) return std::string(as_view(found->get_string()));
  refuse(key, "a string");
  return {};
}

const json::array* ObjectReader::array(std::string_view key) {
  const json::value* found = value(key);
  if (found == nullptr) return nullptr;
  if (found->is_array()) return &found->get_array();
  refuse(key, "a list");
  return nullptr;
}

const json::object* ObjectReader::object(std::string_view key) {
  const json::value* found = value(key);
  if (found == nullptr) return nullptr;
  if (found->is_object()) return &found->get_object();
  refuse(key, "an object");
  return nullptr;
}

void ObjectReader::refuse(std::string_view key, std::string_view expected) {
  const json::value* found = fields_->if_contains(key);
  problem_->add(at(key),
                fmt::format("got {}, expected {}",
                            found == nullptr ? std::string("nothing") : shown_value(*found), expected));
}

std::string ObjectReader::at(std::string_view key) const {
  return path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key);
}

std::vector<std::string> ObjectReader::unread() const {
  std::vector<std::string> keys;
  for (const auto& [key, value] : *fields_) {
    const std::string_view name(key.data(), key.size());
    if (std::find(known_.begin(), known_.end(), name) != known_.end()) continue;
    keys.emplace_back(utf8_replace_invalid(name.substr(0, kShownBytes)));
    if (keys.size() == kMaxUnread) break;
  }
  return keys;
}

}  // namespace mimo
