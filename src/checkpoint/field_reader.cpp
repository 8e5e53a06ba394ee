#include "checkpoint/field_reader.h"

#include <algorithm>
#include <utility>

namespace mimo {
namespace {

constexpr std::size_t kShownValueBytes = 80;

}  // namespace

const json::value* FieldReader::find(std::string_view key) {
  read_.emplace(key);
  const json::value* value = fields_->if_contains(json::string_view(key.data(), key.size()));
  return value != nullptr && !value->is_null() ? value : nullptr;
}

bool FieldReader::has(std::string_view key) { return find(key) != nullptr; }

bool FieldReader::present(std::string_view key) {
  read_.emplace(key);
  return fields_->contains(json::string_view(key.data(), key.size()));
}

std::optional<std::int64_t> FieldReader::integer(std::string_view key, std::int64_t min, std::int64_t max) {
  const json::value* value = find(key);
  if (value == nullptr) return std::nullopt;
  const std::int64_t* number = value->if_int64();
  if (number == nullptr || *number < min || *number > max) {
    refuse(key, fmt::format("an integer from {} to {}", min, max));
    return std::nullopt;
  }
  return *number;
}

std::optional<double> FieldReader::number(std::string_view key, double min, double max) {
  const json::value* value = find(key);
  if (value == nullptr) return std::nullopt;
  double number = 0;
  bool is_number = value->is_number();
  if (is_number) number = value->to_number<double>();
  if (!is_number || !(number >= min && number <= max)) {
    refuse(key, fmt::format("a number from {} to {}", min, max));
    return std::nullopt;
  }
  return number;
}

std::optional<bool> FieldReader::boolean(std::string_view key) {
  const json::value* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_bool()) {
    refuse(key, "true or false");
    return std::nullopt;
  }
  return value->get_bool();
}

std::optional<std::string> FieldReader::text(std::string_view key) {
  const json::value* value = find(key);
  if (value == nullptr) return std::nullopt;
  const json::string* string = value->if_string();
  if (string == nullptr) {
    refuse(key, "a string");
    return std::nullopt;
  }
  return std::string(string->data(), string->size());
}

const json::array* FieldReader::array(std::string_view key) {
  const json::value* value = find(key);
  if (value == nullptr) return nullptr;
  if (!value->is_array()) refuse(key, "an array");
  return value->if_array();
}

const json::object* FieldReader::object(std::string_view key) {
  const json::value* value = find(key);
  if (value == nullptr) return nullptr;
  if (!value->is_object()) refuse(key, "an object");
  return value->if_object();
}

int FieldReader::required_integer(std::string_view key, std::int64_t min, std::int64_t max) {
  if (!has(key)) missing(key);
  return static_cast<int>(integer(key, min, max).value_or(min));
}

std::optional<std::string> FieldReader::one_of(std::string_view key,
                                               std::initializer_list<std::string_view> allowed) {
  std::optional<std::string> value = text(key);
  if (value && std::find(allowed.begin(), allowed.end(), *value) == allowed.end()) {
    std::string expected;
    for (std::string_view each : allowed) {
      expected += fmt::format("{}\"{}\"", expected.empty() ? "" : " or ", each);
    }
    refuse(key, expected);
    return std::nullopt;
  }
  return value;
}

void FieldReader::only_integer(std::string_view key, std::int64_t value) {
  const json::value* found = find(key);
  if (found == nullptr) return;
  if (!found->is_int64() || found->get_int64() != value) refuse(key, fmt::format("{}", value));
}

void FieldReader::only_boolean(std::string_view key, bool value) {
  const json::value* found = find(key);
  if (found == nullptr) return;
  if (!found->is_bool() || found->get_bool() != value) refuse(key, value ? "true" : "false");
}

void FieldReader::missing(std::string_view key) {
  problem(ErrorCode::kInvalidArgument, fmt::format("{} is missing", key));
}

void FieldReader::refuse(std::string_view key, std::string_view expected) {
  problem(ErrorCode::kInvalidArgument, fmt::format("{} is {}, expected {}", key, shown(key), expected));
}

void FieldReader::contradict(std::string_view first, std::string_view second) {
  problem(ErrorCode::kInvalidArgument,
          fmt::format("{} {} contradicts {} {}", first, shown(first), second, shown(second)));
}

void FieldReader::problem(ErrorCode code, std::string message) {
  if (!error_) error_ = Error{code, fmt::format("{}: {}", where_, message)};
}

std::vector<std::string> FieldReader::unread() const {
  std::vector<std::string> keys;
  for (const auto& [key, value] : *fields_) {
    if (!read_.contains(std::string_view(key.data(), key.size()))) keys.emplace_back(key.data(), key.size());
  }
  return keys;
}

std::string FieldReader::shown(std::string_view key) const {
  const json::value* value = fields_->if_contains(json::string_view(key.data(), key.size()));
  if (value == nullptr) return "absent";
  std::string text = json::serialize(*value);
  if (text.size() > kShownValueBytes) {
    text.resize(kShownValueBytes);
    text += "...";
  }
  return text;
}

}  // namespace mimo
