// Reads the fields of one JSON object from outside with type and range checks. The first problem is kept and
// every later call returns a default, so that a reader can be written as a flat list of fields and asked once
// at the end.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "core/result.h"

namespace mimo {

class FieldReader {
 public:
  // `fields` must outlive the reader; `where` names the object in messages ("config.json").
  FieldReader(const json::object& fields, std::string where) : fields_(&fields), where_(std::move(where)) {}

  bool has(std::string_view key);      // present and not null
  bool present(std::string_view key);  // present, null included

  // Nothing when the key is absent or null.
  std::optional<std::int64_t> integer(std::string_view key, std::int64_t min, std::int64_t max);
  std::optional<double> number(std::string_view key, double min, double max);
  std::optional<bool> boolean(std::string_view key);
  std::optional<std::string> text(std::string_view key);
  const json::array* array(std::string_view key);
  const json::object* object(std::string_view key);
  const json::value* value(std::string_view key) { return find(key); }

  // The same, where absence is an error.
  int required_integer(std::string_view key, std::int64_t min, std::int64_t max);

  // Errors unless the key is absent, null, or has one of the values; returns the value that is there.
  std::optional<std::string> one_of(std::string_view key, std::initializer_list<std::string_view> allowed);
  // Errors when the key is there with another value.
  void only_integer(std::string_view key, std::int64_t value);
  void only_boolean(std::string_view key, bool value);

  // Marks a key as known without reading it.
  void ignore(std::string_view key) { read_.emplace(key); }

  void missing(std::string_view key);
  void refuse(std::string_view key, std::string_view expected);  // with the value found
  void contradict(std::string_view first, std::string_view second);
  void problem(ErrorCode code, std::string message);

  bool failed() const { return error_.has_value(); }
  const std::optional<Error>& error() const { return error_; }
  const std::string& where() const { return where_; }

  // Keys of the object that no call above asked for, in the object's order.
  std::vector<std::string> unread() const;

 private:
  const json::value* find(std::string_view key);
  std::string shown(std::string_view key) const;  // the value as JSON, cut to a readable length

  const json::object* fields_;
  std::string where_;
  std::set<std::string, std::less<>> read_;
  std::optional<Error> error_;
};

}  // namespace mimo
