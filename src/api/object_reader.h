// Reads the fields of a request body with type and range checks. The first problem is kept and every later
// call returns nothing, so that a reader can be written as a flat list of fields and asked once at the end.
// JSON null counts as absent everywhere.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/api_error.h"
#include "core/json.h"

namespace mimo {

// The first problem of a request; shared by the readers of its objects.
class RequestProblem {
 public:
  bool found() const { return error_.has_value(); }
  // `path` is the field, `message` what is wrong with it; the path is put in front.
  void add(std::string_view path, std::string_view message);
  void add(ApiError error);
  void add(const Error& error) { add(api_error(error)); }
  const ApiError& error() const { return *error_; }

 private:
  std::optional<ApiError> error_;
};

// The value for a message: numbers and short strings as they are, else the kind. Never long.
std::string shown_value(const json::value& value);

// A JSON integer, or a number without fraction that a double holds exactly.
std::optional<std::int64_t> as_integer(const json::value& value);

std::string_view as_view(const json::string& text);

class ObjectReader {
 public:
  static constexpr std::int64_t kMaxInteger = std::numeric_limits<std::int64_t>::max();

  // `fields` and `problem` must outlive the reader, and so must the keys asked for; `path` of the object
  // itself is "" for the body.
  ObjectReader(const json::object& fields, std::string path, RequestProblem& problem)
      : fields_(&fields), path_(std::move(path)), problem_(&problem) {}

  // Null when absent or null, or when a problem has been found.
  const json::value* value(std::string_view key);
  bool has(std::string_view key) { return value(key) != nullptr; }

  std::optional<bool> boolean(std::string_view key);
  std::optional<std::int64_t> integer(std::string_view key, std::int64_t min = -kMaxInteger - 1,
                                      std::int64_t max = kMaxInteger);
  std::optional<double> number(std::string_view key);
  std::optional<std::string> text(std::string_view key);
  const json::array* array(std::string_view key);
  const json::object* object(std::string_view key);

  // Marks a key as known without reading it.
  void ignore(std::string_view key) { known_.push_back(key); }

  // The value at `key` is not what was expected: "an integer from 1 to 8".
  void refuse(std::string_view key, std::string_view expected);
  // Another problem with the field.
  void problem(std::string_view key, std::string_view message) { problem_->add(at(key), message); }

  std::string at(std::string_view key) const;
  RequestProblem& problems() { return *problem_; }
  bool failed() const { return problem_->found(); }

  // Keys of the object that no call above asked for, in the object's order: the first few, shortened.
  std::vector<std::string> unread() const;

 private:
  const json::object* fields_;
  std::string path_;
  RequestProblem* problem_;
  std::vector<std::string_view> known_;
};

}  // namespace mimo
