// A file with one JSON object a line, written as they come so that a broken run leaves what it had.
#pragma once

#include <fstream>
#include <string>

#include "core/json.h"
#include "core/result.h"

namespace mimo {

class JsonlWriter {
 public:
  // Replaces what was there. Errors name the path.
  static Result<JsonlWriter> create(const std::string& path);

  void write(const json::object& line);
  // Says whether all of it was written. Called once, last.
  Status close();

 private:
  explicit JsonlWriter(std::string path) : path_(std::move(path)), stream_(path_, std::ios::binary) {}

  std::string path_;
  std::ofstream stream_;
};

}  // namespace mimo
