// Boost.JSON behind one door: every JSON text this program reads goes through parse_json, which limits depth
// and size, rejects invalid UTF-8, non-finite numbers and duplicate keys, and says where the text is wrong.
#pragma once

#include <boost/json.hpp>
#include <string_view>

#include "core/result.h"

namespace mimo {

namespace json = boost::json;

struct JsonLimits {
  std::size_t max_depth = 64;          // nesting of arrays and objects
  std::size_t max_bytes = 512u << 20;  // of the text
  bool allow_comments_and_commas =
      false;  // lenient mode for hand-made config files (some released ones need it)
};

// Parses one JSON text. `what` names it in error messages (a file, a request field).
Result<json::value> parse_json(std::string_view text, std::string_view what, const JsonLimits& limits = {});

// Reads and parses a whole file; the path is the name in messages.
Result<json::value> parse_json_file(const std::string& path, const JsonLimits& limits = {});

}  // namespace mimo
