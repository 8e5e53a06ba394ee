// Files with one JSON object a line.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "core/json.h"
#include "core/result.h"

namespace mimo {

// A line of a JSONL file; its accessors say "FILE:LINE: field "x": expected ..., got ...".
class JsonLine {
 public:
  JsonLine(std::string where, json::object object) : where_(std::move(where)), object_(std::move(object)) {}

  const std::string& where() const { return where_; }  // FILE:LINE
  const json::object& object() const { return object_; }

  Result<std::string> text(std::string_view key) const;  // required, not empty
  Result<bool> boolean(std::string_view key, bool otherwise) const;
  Result<json::array> list(std::string_view key) const;  // required

 private:
  std::string where_;
  json::object object_;
};

// Calls `line` for every line that is not blank, in order, until it fails. The file may have 512 MiB, a line
// 64 MiB. Errors name the file and the line.
Status read_jsonl(const std::string& path, const std::function<Status(const JsonLine&)>& line);

}  // namespace mimo
